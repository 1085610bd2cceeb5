"""One log line: a JSON object whose last member is the CRC-32 of the bytes before that member.

Layout: `{"key":...,"crc":"0123abcd"}` and a newline. The CRC covers the bytes as written, so any flipped bit shows.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

_CRC_MEMBER = re.compile(rb',"crc":"([0-9a-f]{8})"\}')
_LINE_START = (
    b'{"key":'  # inside a JSON text its quotes would be escaped, so it marks a line's start wherever it stands
)


def encode_line(record: Mapping[str, Any]) -> bytes:
    """The line with its newline. `key` must be the first member, and `crc` must not be one."""
    body = json.dumps(record, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()[:-1]
    assert body.startswith(_LINE_START) and "crc" not in record
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def decode_line(line: bytes) -> dict[str, Any] | None:
    """The record of a line without its newline, CRC included; None when it is damaged."""
    member = _CRC_MEMBER.search(line, max(0, len(line) - 18))
    if member is None or member.end() != len(line) or int(member[1], 16) != zlib.crc32(line[: member.start()]):
        return None
    record = json.loads(line)
    assert isinstance(record, dict)
    return record


def salvage(line: bytes) -> Iterator[dict[str, Any]]:
    """Whole records inside a damaged line: what remains when the newline between two of them was lost."""
    for start in re.finditer(re.escape(_LINE_START), line):
        member = _CRC_MEMBER.search(line, start.start())
        if member and (record := decode_line(line[start.start() : member.end()])):
            yield record
