"""One byte sequence per JSON value, for digests; and text that any encoder accepts."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, ASCII. Equal values give equal bytes; NaN and infinities raise ValueError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def sha256_json(value: Any) -> str:
    """Hexadecimal SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def well_formed(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates (legal in JSON escapes, in no encoding) as U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_well_formed(text: str) -> bool:
    """Whether `text` can be encoded as UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
