"""From bytes on the wire to a checked body, within limits of size and time; errors in one clear sentence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from server.api.json_unions import TAGS
from server.api.protocol import RequestBody, SamplingBody
from server.errors import RequestError
from server.frontend.field_checks import shown

_READ_TIMEOUT = 60.0
"""Seconds for a whole body to arrive; a connection that trickles bytes is not kept for ever."""

_MAX_ERRORS_SHOWN = 3
_MAX_NAME_LENGTH = 100


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises RequestError (413, 408) when it is too large or too slow."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(declared, max_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_READ_TIMEOUT):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large(f"{size} or more", max_bytes)
                chunks.append(chunk)
    except TimeoutError:
        raise RequestError(f"the body did not arrive within {_READ_TIMEOUT:g} s", status=408) from None
    except ClientDisconnect:
        raise RequestError("the client went away before its body arrived", status=408) from None
    return b"".join(chunks)


def parse_body[Body: RequestBody](data: bytes, model: type[Body]) -> Body:
    """Decode JSON and check types; an unknown field is an error. Raises RequestError."""
    return check_body(decode_object(data), model)


def decode_object(data: bytes) -> dict[str, Any]:
    """The JSON object that the body is. Raises RequestError."""
    fields = _decode(data)
    if not isinstance(fields, dict):
        raise RequestError(f"the body must be a JSON object, but is {_json_kind(fields)}")
    return fields


def check_body[Body: RequestBody](fields: dict[str, Any], model: type[Body]) -> Body:
    """Check types; an unknown field is an error. Raises RequestError."""
    body = _validate(fields, model, "allow")
    unknown = [field.path for field in islice(_unknown_fields(body), _MAX_ERRORS_SHOWN)]
    if unknown:
        raise RequestError("; ".join(map(_not_a_field, unknown)), field=unknown[0])
    return body


def refuse_fields(
    fields: dict[str, Any],
    unsupported: Iterable[str],
    neutral: Mapping[str, Any] = MappingProxyType({}),
    *,
    path: str = "",
) -> None:
    """Raises RequestError for a known field that cannot be honoured, unless its value asks for nothing.

    Clients send such values unasked: null, false, an empty list or object, or for some fields what `neutral` has for
    them. They are removed. path: where `fields` stand in the body, as `parameters.`.
    """
    for name in unsupported:
        value = fields.pop(name, None)
        harmless = value is None or (value == neutral[name] if name in neutral else value in (False, [], {}))
        if not harmless:
            raise RequestError(f"{path}{name} is not supported by this server", field=f"{path}{name}")


class LenientBody[Body: RequestBody](NamedTuple):
    """ignored: JSON paths of unknown fields that had a value."""

    body: Body
    ignored: list[str]


def check_body_leniently[Body: RequestBody](fields: dict[str, Any], model: type[Body]) -> LenientBody[Body]:
    """Check types; unknown fields, at any depth, are left out and reported. Raises RequestError."""
    body = _validate(fields, model, "allow")
    unknown = list(_unknown_fields(body))
    if not unknown:
        return LenientBody(body, [])
    ignored = [field.path for field in unknown if field.value is not None]
    return LenientBody(_validate(fields, model, "ignore"), ignored)


def _decode(data: bytes) -> Any:
    """Strict JSON; what only Python's decoder reads (NaN, 1e400) goes on, so that the model can name the field."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        try:
            fields = json.loads(data)
            json.dumps(fields, ensure_ascii=False).encode()  # half a surrogate pair is no text
            return fields
        except (ValueError, RecursionError):
            raise RequestError(f"the body is not valid JSON: {error}") from error


def _validate[Body: RequestBody](fields: dict[str, Any], model: type[Body], extra: Literal["allow", "ignore"]) -> Body:
    """extra: what is done with unknown fields. Pydantic's "forbid" would make an error of each, however many."""
    try:
        return model.model_validate(fields, extra=extra)
    except ValidationError as error:
        raise _as_request_error(error) from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error


class _UnknownField(NamedTuple):
    """path: where in the body."""

    path: str
    value: Any


def _unknown_fields(value: Any, path: str = "") -> Iterator[_UnknownField]:
    """What a model kept beside its own fields, at any depth."""
    if isinstance(value, RequestBody):
        for name, given in (value.model_extra or {}).items():
            yield _UnknownField(_joined(path, name), given)
        for name, field in type(value).model_fields.items():
            yield from _unknown_fields(getattr(value, name), _joined(path, field.alias or name))
    elif isinstance(value, list) and value and isinstance(value[0], RequestBody):  # then all of it is
        for index, item in enumerate(value):
            yield from _unknown_fields(item, _joined(path, index))


def _too_large(size: str, max_bytes: int) -> RequestError:
    return RequestError(f"the body has {size} bytes, but may have at most {max_bytes} (--max-body-mb)", status=413)


def _as_request_error(error: ValidationError) -> RequestError:
    """One sentence for the first few of pydantic's errors."""
    details = error.errors(include_url=False, include_context=False)[:_MAX_ERRORS_SHOWN]
    return RequestError("; ".join(map(_sentence, details)), field=_json_path(details[0]["loc"]))


def _sentence(detail: ErrorDetails) -> str:
    path = _json_path(detail["loc"])
    if detail["type"] == "missing":
        return f"{path} is missing"
    expected = detail["msg"].removeprefix("Input ")
    return f"{path} {expected[:1].lower()}{expected[1:]}, but is {shown(detail['input'])}"


def _not_a_field(path: str) -> str:
    misplaced = "; it belongs into sampling_params" if path in SamplingBody.model_fields else ""
    return f"{path} is not a field of this request{misplaced}"


def _json_path(location: tuple[int | str, ...]) -> str:
    """`("messages", 0, "content")` to `messages[0].content`; the tags of `json_unions` are left out."""
    path = ""
    for part in location:
        if part not in TAGS:
            path = _joined(path, part)
    return path or "body"


def _joined(path: str, part: int | str) -> str:
    """A path one step longer; a name that the client made up may be of any length."""
    if isinstance(part, int):
        return f"{path}[{part}]"
    name = part if len(part) <= _MAX_NAME_LENGTH else part[:_MAX_NAME_LENGTH] + "..."
    return f"{path}.{name}" if path else name


def _json_kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
