"""A server that answers at once, as a process of its own: what remains of the time is the client's and the wire's.

`python -m benchmarks.client_overhead_stub` prints its port. It knows /health/ready, /server_info, /v1/models, and has
one answer to every POST. It parses requests with httptools and writes prepared bytes, so that its share stays small.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import httptools
import uvloop

_CHAT = {
    "id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": "stub",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "B"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 20, "completion_tokens": 1, "total_tokens": 21},
}  # fmt: skip
_INFO = {
    "kind": "gpt",
    "checkpoint": {"path": "/checkpoints/stub", "format": "torch_dist", "iteration": 1, "digest": "stub"},
    "arguments": [{"arg": "dtype", "value": "fp32", "source": "default"}],
}


def _response(body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


_ANSWER = _response(_CHAT)
_OF_GET = {
    b"/health/ready": _response({"status": "ready"}),
    b"/server_info": _response(_INFO),
    b"/v1/models": _response({"object": "list", "data": [{"id": "stub", "object": "model"}]}),
}


class _Connection(asyncio.Protocol):
    """One client's connection. The names beginning with on_ are httptools'."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods, not by its class
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_message_complete(self) -> None:
        self._transport.write(_OF_GET.get(self._url, _ANSWER))


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
