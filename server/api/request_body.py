"""From bytes on the wire to a checked body, within limits of size and time; errors in one clear sentence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

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


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises RequestError (413, 408) when it is too large or too slow."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_READ_TIMEOUT):
            async for chunk in request.stream():
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large(max_bytes)
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
    """Check types. Raises RequestError."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _as_request_error(error) from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error


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
    """Check types; unknown fields, at any depth, are removed and reported. Raises RequestError."""
    try:
        return LenientBody(model.model_validate(fields), [])
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error
    unknown = [detail for detail in details if detail["type"] == "extra_forbidden"]
    for detail in unknown:
        _remove(fields, detail["loc"])
    ignored = [_json_path(detail["loc"]) for detail in unknown if detail["input"] is not None]
    return LenientBody(check_body(fields, model), ignored)


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


def _too_large(max_bytes: int) -> RequestError:
    return RequestError(f"the body may have at most {max_bytes} bytes (--max-body-mb)", status=413)


def _as_request_error(error: ValidationError) -> RequestError:
    """One sentence for the first few of pydantic's errors."""
    details = error.errors(include_url=False, include_context=False)[:_MAX_ERRORS_SHOWN]
    return RequestError("; ".join(map(_sentence, details)), field=_json_path(details[0]["loc"]))


def _sentence(detail: ErrorDetails) -> str:
    path = _json_path(detail["loc"])
    if detail["type"] == "extra_forbidden":
        misplaced = "; it belongs into sampling_params" if path in SamplingBody.model_fields else ""
        return f"{path} is not a field of this request{misplaced}"
    if detail["type"] == "missing":
        return f"{path} is missing"
    expected = detail["msg"].removeprefix("Input ")
    return f"{path} {expected[:1].lower()}{expected[1:]}, but is {shown(detail['input'])}"


def _remove(fields: Any, location: tuple[int | str, ...]) -> None:
    *parents, name = location
    for part in parents:
        if isinstance(part, int) or (isinstance(fields, dict) and part in fields):  # else a union's name for a member
            fields = fields[part]
    fields.pop(name, None)


def _json_path(location: tuple[int | str, ...]) -> str:
    """`("messages", 0, "content")` to `messages[0].content`; the tags of `json_unions` are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in TAGS:
            path += f".{part}" if path else part
    return path or "body"


def _json_kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
