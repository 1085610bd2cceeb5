"""A client that leaves, whatever its request is just going through: the engine is free of it soon after."""

from __future__ import annotations

import base64
import io
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def well_afterwards(real_server: Any) -> Iterator[None]:
    yield
    real_server.wait(lambda: real_server.client.get("/load").json()["server_load"] == 0)
    real_server.wait(lambda: (stats := real_server.stats())["num_running"] + stats["num_waiting"] == 0)
    real_server.assert_well()


def request(body: dict[str, Any], *, declared: int | None = None) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data) if declared is None else declared}\r\n\r\n"
    )
    return head.encode() + data


def connect(server: Any) -> socket.socket:
    parts = urlsplit(server.url)
    assert parts.hostname and parts.port
    return socket.create_connection((parts.hostname, parts.port))


def leave_when(server: Any, data: bytes, moment: Callable[[dict[str, Any]], bool]) -> None:
    with connect(server) as connection:
        connection.sendall(data)
        server.wait(lambda: moment(server.stats()))


LONG = {"max_new_tokens": 400, "ignore_eos": True}


@pytest.mark.parametrize("sent", [b"POST /gen", b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Le"])
def test_in_the_headers(real_server: Any, sent: bytes) -> None:
    with connect(real_server) as connection:
        connection.sendall(sent)


def test_in_the_body(real_server: Any) -> None:
    with connect(real_server) as connection:
        connection.sendall(request({"text": "hello"}, declared=100_000))


def test_while_its_image_is_decoded(real_server: Any) -> None:
    file = io.BytesIO()
    Image.effect_noise((1500, 1500), 60).convert("RGB").save(file, "JPEG")
    image = base64.b64encode(file.getvalue()).decode()
    with connect(real_server) as connection:
        connection.sendall(request({"text": "what", "image_data": image, "sampling_params": LONG}))


@pytest.mark.parametrize("stream", [False, True])
def test_in_the_queue(real_server: Any, stream: bool) -> None:
    real_server.client.post("/pause")
    try:
        body = {"text": "hello", "stream": stream, "sampling_params": LONG}
        leave_when(real_server, request(body), lambda stats: stats["num_waiting"] == 1)
        real_server.wait(lambda: real_server.stats()["num_waiting"] == 0)
    finally:
        real_server.client.post("/resume")


@pytest.mark.parametrize("stream", [False, True])
def test_in_the_middle_of_its_prompt(real_server: Any, stream: bool) -> None:
    """A prompt of 25 steps: the client leaves after the first of them."""
    generated = real_server.stats()["total_generated_tokens"]
    body = {
        "input_ids": [3 + i % 300 for i in range(390)],
        "stream": stream,
        "sampling_params": LONG | {"max_new_tokens": 100},
    }
    leave_when(real_server, request(body), lambda stats: stats["num_running"] == 1)
    real_server.wait(lambda: real_server.stats()["num_running"] == 0)
    assert real_server.stats()["total_generated_tokens"] - generated < 100


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 5])
def test_in_the_middle_of_its_answer(real_server: Any, stream: bool, n: int) -> None:
    generated = real_server.stats()["total_generated_tokens"]
    body = {"text": "hello", "stream": stream, "sampling_params": LONG | {"n": n}}
    leave_when(real_server, request(body), lambda stats: stats["total_generated_tokens"] >= generated + 3 * n)


def test_with_its_whole_answer_unread(real_server: Any) -> None:
    generated = real_server.stats()["total_generated_tokens"]
    body = {"text": "hello", "stream": True, "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
    leave_when(real_server, request(body), lambda stats: stats["total_generated_tokens"] >= generated + 3)
