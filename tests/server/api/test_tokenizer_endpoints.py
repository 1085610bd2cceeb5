"""/tokenize, /detokenize and /tokenizer_info, as lm-evaluation-harness and vLLM's clients use them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_text_to_tokens_and_back(client: httpx.Client) -> None:
    reply = post(client, "/tokenize", prompt="hello 😀", add_special_tokens=False, return_token_strs=True)
    assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"]) == 6
    assert reply["max_model_len"] == 256
    assert post(client, "/detokenize", tokens=reply["tokens"]) == {"prompt": "hello 😀"}


def test_control_tokens_are_found_unless_they_are_to_be_split(client: httpx.Client) -> None:
    assert post(client, "/tokenize", prompt="<|im_end|>")["tokens"] == [2]
    split = post(client, "/tokenize", prompt="<|im_end|>", split_special_tokens=True)["tokens"]
    assert len(split) > 1
    assert post(client, "/detokenize", tokens=[1, *split, 2]) == {"prompt": "<|im_start|><|im_end|><|im_end|>"}


def test_a_conversation(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "he"}]
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nhe"
    whole = post(client, "/tokenize", messages=messages)["tokens"]
    assert post(client, "/detokenize", tokens=whole)["prompt"] == text + "<|im_end|>\n<|im_start|>assistant\n"
    opened = post(client, "/tokenize", messages=messages, continue_final_message=True)["tokens"]
    assert post(client, "/detokenize", tokens=opened)["prompt"] == text
    closed = post(client, "/tokenize", messages=messages, add_generation_prompt=False)["tokens"]
    assert post(client, "/detokenize", tokens=closed)["prompt"] == text + "<|im_end|>\n"


def test_what_the_tokenizer_is(client: httpx.Client) -> None:
    info = client.get("/tokenizer_info").json()
    assert (info["bos_token"], info["eos_token"], info["vocab_size"]) == ("<|im_start|>", "<|im_end|>", 353)
    assert "add_generation_prompt" in info["chat_template"]
    assert info["add_bos_token"] is False


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {}, None),
        ("/tokenize", {"prompt": "x", "messages": []}, None),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [400]}, "tokens[0]"),
        ("/detokenize", {"tokens": [3, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [2**70]}, "tokens[0]"),
    ],
)
def test_refusals(client: httpx.Client, path: str, body: dict[str, Any], field: str | None) -> None:
    reply = client.post(path, json=body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["field"] == field


def test_images_have_no_tokens_of_their_own_here(client: httpx.Client) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    reply = client.post("/tokenize", json={"messages": [{"role": "user", "content": [part]}]})
    assert reply.status_code == 400
    assert "images" in reply.json()["error"]["message"]


def test_another_model_is_404_and_unknown_fields_are_named(client: httpx.Client) -> None:
    assert client.post("/tokenize", json={"prompt": "x", "model": "other"}).status_code == 404
    assert "unheard_of" in client.post("/tokenize", json={"prompt": "x", "unheard_of": 1}).headers["warnings"]
