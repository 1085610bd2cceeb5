"""From bytes on the wire to a checked body, within limits of size and time; errors in one clear sentence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

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


def parse_body[Body: RequestBody](
    data: bytes,
    model: type[Body],
    *,
    unsupported: Iterable[str] = (),
    ignored: Iterable[str] = (),
) -> Body:
    """Decode JSON and check types.

    unsupported: known fields to refuse by name unless they ask for nothing. ignored: fields to drop.
    Raises RequestError.
    """
    fields = _decode(data)
    if not isinstance(fields, dict):
        raise RequestError(f"the body must be a JSON object, but is {_json_kind(fields)}")
    for name in unsupported:
        if fields.pop(name, None) not in (None, False, [], {}):
            raise RequestError(f"{name} is not supported by this server", field=name)
    for name in ignored:
        fields.pop(name, None)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _as_request_error(error) from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error


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


def _json_path(location: tuple[int | str, ...]) -> str:
    """`("messages", 0, "content")` to `messages[0].content`; the tags of `json_unions` are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<"):
            path += f".{part}" if path else part
    return path or "body"


def _json_kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
