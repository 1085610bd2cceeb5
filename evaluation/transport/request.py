"""One HTTP request as data: the body is made when it is sent, so image bytes are in memory only while under way."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evaluation.datasets import Image
from evaluation.transport.outcome import Reply


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """A POST. make_body: from a request id, with the images' bytes read. parse: the JSON of a reply. num_image_bytes:
    of all its images as they are on disk."""

    path: str
    make_body: Callable[[str], Mapping[str, Any]]
    parse: Callable[[Any], Reply]
    num_image_bytes: int = 0

    def encode(self, request_id: str) -> bytes:
        """The body; ValueError when an image cannot be read any more."""
        return json.dumps(self.make_body(request_id), separators=(",", ":"), allow_nan=False).encode()


def data_url(image: Image) -> str:
    """The image inside a URL (RFC 2397), its bytes unchanged."""
    return f"data:{image.media_type};base64,{base64.b64encode(image.load()).decode()}"
