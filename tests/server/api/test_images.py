"""Images over HTTP: where they go in a prompt, what is refused, and that nothing of them is left behind."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from PIL import Image

# 64x64 pixels in patches of 16: 16 tokens, no class token.
VLM = {
    "vision_model_type": "siglip", "img_h": 64, "img_w": 64, "patch_dim": 16, "vocab_size": 400,
    "image_tag_type": "", "max_images": 4, "max_image_mb": 0.25, "max_body_mb": 4.0,
}  # fmt: skip
NUM_TOKENS = 16


@pytest.fixture(scope="module")
def server(start_stub_server: Callable[..., Any]) -> Iterator[Any]:
    with start_stub_server(kind="vlm", **VLM) as server:
        yield server


@pytest.fixture
def client(server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
        # Whatever the test did, the server still answers.
        assert client.post("/generate", json={"text": "hello", "sampling_params": {"max_new_tokens": 1}}).is_success


def encoded(colour: Any = "red", size: tuple[int, int] = (40, 30), format: str = "PNG", mode: str = "RGB") -> str:
    file = io.BytesIO()
    Image.new(mode, size, colour).save(file, format)
    return base64.b64encode(file.getvalue()).decode()


def url(data: str) -> str:
    return f"data:image/png;base64,{data}"


def generate(client: httpx.Client, text: Any, image_data: Any, **more: Any) -> httpx.Response:
    body = {"text": text, "image_data": image_data, "sampling_params": {"max_new_tokens": 1, "ignore_eos": True}}
    return client.post("/generate", json=body | more)


def chat(client: httpx.Client, *parts: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 1}
    return client.post("/v1/chat/completions", json=body)


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image_part(data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(data), "detail": "auto"}}


def added(server: Any) -> list[dict[str, Any]]:
    return [entry for entry in server.engine_log() if "added" in entry]


@pytest.mark.parametrize("as_data", [encoded(), url(encoded())])
@pytest.mark.parametrize(
    ("text", "words_before"), [("look: <image> what?", True), ("what?", False), ("<image>what?", False)]
)
def test_an_image_goes_where_its_marker_is_or_first(
    server: Any, client: httpx.Client, text: str, words_before: bool, as_data: str
) -> None:
    reply = generate(client, text, as_data).json()
    entry = added(server)[-1]
    [image] = entry["images"]
    assert (image["first_token"] > 0) == words_before
    assert image["num_tokens"] == NUM_TOKENS
    assert image["shape"] == [1, 3, 64, 64]
    assert entry["prompt"][image["first_token"] :][:NUM_TOKENS] == [0] * NUM_TOKENS
    assert reply["meta_info"]["image_tokens"] == NUM_TOKENS
    assert reply["meta_info"]["prompt_tokens"] == len(entry["prompt"])


def test_without_images_a_marker_is_text(server: Any, client: httpx.Client) -> None:
    generate(client, "an <image> of nothing", None)
    with_marker = added(server)[-1]
    assert "images" not in with_marker
    generate(client, "an  of nothing", None)
    assert len(with_marker["prompt"]) > len(added(server)[-1]["prompt"])


def test_chat_places_images_by_parts_and_a_literal_marker_stays_text(server: Any, client: httpx.Client) -> None:
    reply = chat(
        client, text_part("is <image> this"), image_part(encoded("red")), text_part("or"), image_part(encoded("blue"))
    )
    assert reply.is_success, reply.text
    entry = added(server)[-1]
    first, second = entry["images"]
    assert first["digest"] != second["digest"]
    assert first["first_token"] > 5  # template and text come before
    assert second["first_token"] > first["first_token"] + NUM_TOKENS
    assert entry["prompt"].count(0) == 2 * NUM_TOKENS
    assert reply.json()["usage"]["prompt_tokens"] == len(entry["prompt"])


def test_chat_with_an_image_tokenises_its_text_as_chat_without(server: Any, client: httpx.Client) -> None:
    chat(client, text_part("hello world"))
    plain = added(server)[-1]["prompt"]
    chat(client, image_part(encoded()), text_part("hello world"))
    entry = added(server)[-1]
    begin = entry["images"][0]["first_token"]
    assert entry["prompt"][:begin] + entry["prompt"][begin + NUM_TOKENS :] == plain


def test_control_tokens_in_text_beside_an_image_stay_text(server: Any, client: httpx.Client) -> None:
    chat(client, image_part(encoded()), text_part("<|im_end|>"))
    chat_prompt = added(server)[-1]["prompt"]
    chat(client, image_part(encoded()), text_part(""))
    assert chat_prompt.count(2) == added(server)[-1]["prompt"].count(2)  # the template's own alone
    generate(client, "<image><|im_end|>", encoded())
    assert 2 not in added(server)[-1]["prompt"]


def test_equal_images_have_equal_digests_whatever_file_format(server: Any, client: httpx.Client) -> None:
    generate(client, "a", [encoded("red"), encoded("red", format="BMP"), encoded("blue"), encoded("red")])
    digests = [image["digest"] for image in added(server)[-1]["images"]]
    assert digests[0] == digests[1] == digests[3] != digests[2]


def test_a_batch_has_an_entry_for_each_prompt(server: Any, client: httpx.Client) -> None:
    before = len(added(server))
    reply = generate(client, ["one", "two", "three"], [encoded(), None, [encoded(), encoded("blue")]])
    assert reply.is_success, reply.text
    assert [len(entry.get("images", [])) for entry in added(server)[before:]] == [1, 0, 2]


GOOD = encoded()


@pytest.mark.parametrize(
    ("text", "image_data", "message"),
    [
        ("<image> and <image>", GOOD, "1 image for 2 <image> markers"),
        ("<image>", [GOOD, GOOD], "2 images for 1 <image> marker"),
        ("a", [GOOD] * 5, "4"),
        ("a", "http://example.org/cat.png", "fetches nothing"),
        ("a", "/etc/passwd", "base64"),
        ("a", "data:image/png,abc", "data:image"),
        ("a", "!!!!", "base64"),
        ("a", "", "empty"),
        ("a", base64.b64encode(b"no image").decode(), "image 1"),
        ("a", [GOOD, base64.b64encode(b"GIF89a").decode()], "image 2"),
        ("a", base64.b64encode(base64.b64decode(GOOD)[:-30]).decode(), "image 1"),
        ("a", base64.b64encode(b"x" * 300_000).decode(), "bytes"),
        ("a", 7, "base64"),
        ("a", [7], "base64"),
        (["a", "b"], [GOOD], "1 entries for 2 prompts"),
        (["a", "b"], GOOD, "no list"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(client: httpx.Client, text: Any, image_data: Any, message: str) -> None:
    reply = generate(client, text, image_data)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["field"].startswith("image_data")
    assert message in error["message"]


def test_images_with_token_ids_are_refused(client: httpx.Client) -> None:
    reply = client.post("/generate", json={"input_ids": [1, 2], "image_data": GOOD})
    assert reply.status_code == 400
    assert "image_data needs text" in reply.text


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1)])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "CMYK", "P", "I;16"])
def test_odd_images_are_answered_or_refused(client: httpx.Client, size: tuple[int, int], mode: str) -> None:
    reply = generate(client, "a", encoded(0, size, "TIFF" if mode == "CMYK" else "PNG", mode))
    assert reply.status_code in (200, 400)
    if mode != "CMYK":  # TIFF is not accepted
        assert reply.status_code == 200, reply.text


def test_one_image_asked_about_at_once_is_prepared_once_and_files_are_given_back(
    start_stub_server: Callable[..., Any],
) -> None:
    with start_stub_server(kind="vlm", **VLM | {"image_store_mb": 0.1}) as server:
        directory = server.log.parent
        with httpx.Client(base_url=server.url, timeout=60) as client:
            data = encoded("teal", (300, 200))
            threads = [threading.Thread(target=generate, args=(client, "a", data)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for level in range(12):
                assert generate(client, "a", encoded((level, 0, 0))).is_success
        files = [path for path in directory.rglob("*") if path.is_file() and path.parent.name == "images"]
        digests = {entry["images"][0]["digest"] for entry in added(server)}
        assert len(digests) == 13
        assert 1 <= len(files) <= 3  # 49 KB each, 0.1 MiB are kept


def test_a_model_of_text_refuses_images(stub_server: Any) -> None:
    with httpx.Client(base_url=stub_server.url) as client:
        reply = chat(client, image_part(GOOD))
        assert reply.status_code == 400
        assert "takes text only" in reply.text
