"""Every limit is a flag: beyond it a 4xx says which limit, and what was sent."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from PIL import Image

SLOW = 1004
# 64x64 pixels in patches of 16.
VLM = {
    "vision_model_type": "siglip",
    "img_h": 64,
    "img_w": 64,
    "patch_dim": 16,
    "vocab_size": 400,
    "image_tag_type": "",
}
LIMITS = {
    "max_body_mb": 0.5, "max_images": 2, "max_image_mb": 0.01, "max_image_pixels": 10_000, "max_choices": 3,
    "max_stop_strings": 4, "max_logprobs": 5, "max_batch_items": 6, "max_queued_requests": 7,
    "allow_remote_images": ["images.example"],
}  # fmt: skip


@pytest.fixture(scope="module")
def client(start_stub_server: Callable[..., Any]) -> Iterator[httpx.Client]:
    with (
        start_stub_server(kind="vlm", **VLM | LIMITS) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


def picture(size: tuple[int, int]) -> str:
    file = io.BytesIO()
    Image.new("L", size).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def generate(client: httpx.Client, sampling: dict[str, Any] | None = None, **fields: Any) -> httpx.Response:
    body = {"text": "hello", "sampling_params": {"max_new_tokens": 1} | (sampling or {})} | fields
    return client.post("/generate", json=body)


SMALL = picture((20, 20))
OVER: dict[str, tuple[dict[str, Any], int, tuple[str, ...]]] = {
    "body": ({"text": "x" * 600_000}, 413, ("524288", "--max-body-mb")),
    "images": ({"image_data": [SMALL] * 3}, 400, ("2", "3", "--max-images")),
    "image pixels": ({"image_data": picture((101, 100))}, 400, ("101x100", "10,000")),
    "n": ({"sampling": {"n": 4}}, 400, ("at most 3", "4")),
    "stop strings": ({"sampling": {"stop": list("abcde")}}, 400, ("at most 4", "5")),
    "logprobs": ({"return_logprob": True, "top_logprobs_num": 6}, 400, ("at most 5", "6")),
    "prompts": ({"text": ["x"] * 7}, 400, ("at most 6", "7", "--max-batch-items")),
    "queue": ({"text": ["x"] * 3, "sampling": {"n": 3}}, 429, ("9", "--max-queued-requests 7")),
}


@pytest.mark.parametrize("name", OVER)
def test_beyond_a_limit(client: httpx.Client, name: str) -> None:
    fields, status, words = OVER[name]
    reply = generate(client, **fields)
    assert reply.status_code == status, reply.text
    message = reply.json()["error"]["message"]
    assert [word for word in words if word not in message] == [], message
    assert ("retry-after" in reply.headers) == (status == 429)


def test_the_bytes_of_an_image(client: httpx.Client) -> None:
    file = base64.b64decode(SMALL)
    as_large_as_allowed, larger = (file.ljust(size, b"\0") for size in (10_485, 10_486))
    reply = generate(client, image_data=base64.b64encode(larger).decode())
    assert reply.status_code == 400
    assert "10,486 bytes; at most 10,485" in reply.json()["error"]["message"]
    assert generate(client, image_data=base64.b64encode(as_large_as_allowed).decode()).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"image_data": [SMALL] * 2},
        {"image_data": picture((100, 100))},
        {"sampling": {"n": 3}},
        {"sampling": {"stop": list("abcd")}},
        {"return_logprob": True, "top_logprobs_num": 5},
        {"text": ["x"] * 6},
    ],
)
def test_at_a_limit(client: httpx.Client, fields: dict[str, Any]) -> None:
    reply = generate(client, **fields)
    assert reply.status_code == 200, reply.text


def test_the_queue_counts_what_others_have_under_way(client: httpx.Client) -> None:
    slow = {"max_new_tokens": 20, "seed": SLOW, "ignore_eos": True}
    with httpx.Client(base_url=client.base_url, timeout=60) as other:
        work = threading.Thread(target=lambda: generate(other, slow, text=["x"] * 5))
        work.start()
        while client.get("/load").json()["server_load"] != 5:
            assert work.is_alive()
        assert generate(client, text=["x"] * 3).status_code == 429
        assert generate(client, text=["x"] * 2).status_code == 200
        work.join()


@pytest.mark.parametrize("wrong", [{"stop": "x" * 1025}, {"n": 1000}])
def test_the_queue_is_asked_before_anything_is_made(client: httpx.Client, wrong: dict[str, Any]) -> None:
    """What else is wrong with a request is only found while its sequences are made."""
    assert generate(client, {"n": 3} | wrong, text=["x"] * 3).status_code == 429
    assert generate(client, {"n": 1} | wrong, text=["x"]).status_code == 400


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://169.254.169.254/latest/meta-data", "not among the hosts of --allow-remote-images"),
        ("http://images.example@127.0.0.1/x.png", "holds a name"),
        ("https://images.example.evil.example/x.png", "not among the hosts"),
    ],
)
def test_images_are_fetched_from_allowed_hosts_only(client: httpx.Client, path: str, address: str, words: str) -> None:
    if path == "/generate":
        reply = generate(client, image_data=address)
    else:
        part = {"type": "image_url", "image_url": {"url": address}}
        reply = client.post(path, json={"messages": [{"role": "user", "content": [part]}]})
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]
