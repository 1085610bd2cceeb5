"""OpenAI's own client: pictures, streams, log-probabilities, token-id prompts, errors."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from PIL import Image

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def sdk(stub_server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stub_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def seeing(start_stub_server: Callable[..., Any]) -> Iterator[Any]:
    vision = {"vision_model_type": "siglip", "img_h": 64, "img_w": 64, "patch_dim": 16, "image_tag_type": ""}
    with start_stub_server(kind="vlm", vocab_size=400, **vision) as server:
        yield server


def picture(colour: str) -> str:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def test_a_chat_about_a_picture_whole_and_streamed(seeing: Any) -> None:
    parts = [
        {"type": "text", "text": "what is "},
        {"type": "image_url", "image_url": {"url": picture("red"), "detail": "low"}},
        {"type": "text", "text": "?"},
    ]
    with openai.OpenAI(base_url=f"{seeing.url}/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        ask: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": parts}], "max_tokens": 9}
        whole = client.chat.completions.create(**ask)
        assert whole.usage is not None
        assert whole.usage.prompt_tokens > 16
        assert seeing.engine_log()[-1]["images"][0]["num_tokens"] == 16
        with client.chat.completions.create(**ask, stream=True) as stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == whole.choices[0].message.content


def test_chat_logprobs_whole_and_streamed(sdk: openai.OpenAI) -> None:
    ask: dict[str, Any] = {
        "model": "tiny", "messages": HELLO, "max_completion_tokens": 4, "logprobs": True, "top_logprobs": 2,
        "seed": 1004,
    }  # fmt: skip
    whole = sdk.chat.completions.create(**ask).choices[0].logprobs
    assert whole is not None
    assert whole.content is not None
    assert [len(token.top_logprobs) for token in whole.content] == [2] * 4
    with sdk.chat.completions.create(**ask, stream=True) as stream:
        pieces = [chunk.choices[0].logprobs for chunk in stream]
    streamed = [token for piece in pieces if piece for token in piece.content or ()]
    assert streamed == whole.content


def test_completions_of_token_ids_with_echo(sdk: openai.OpenAI) -> None:
    reply = sdk.completions.create(model="tiny", prompt=[[70, 71], [72]], max_tokens=1, echo=True, logprobs=1)
    assert [choice.text for choice in reply.choices] == ["ded", "ff"]
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs == [None, -0.5, -0.5]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (3, 2)


def test_cached_tokens_and_usage_of_a_stream(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "the lazy dog " * 12}], max_tokens=2,
        stream=True, stream_options={"include_usage": True},
    ) as stream:  # fmt: skip
        *_, last = stream
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == last.usage.prompt_tokens // 16 * 16 > 0


def test_fields_beyond_openais_by_extra_body(sdk: openai.OpenAI) -> None:
    reply = sdk.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=1, extra_body={"top_k": 5, "min_p": 0.1, "return_token_ids": True}
    )
    assert reply.model_extra is not None
    assert len(reply.model_extra["prompt_token_ids"]) == reply.usage.prompt_tokens  # type: ignore[union-attr]


def test_a_prompt_that_is_too_long_is_an_error_with_openais_code(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.completions.create(model="tiny", prompt=[70] * 300)
    assert caught.value.code == "context_length_exceeded"


async def test_the_asynchronous_client_streams(stub_server: Any) -> None:
    async with openai.AsyncOpenAI(base_url=f"{stub_server.url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.completions.create(model="tiny", prompt="def", max_tokens=7, stream=True, seed=1004)
        texts = [chunk.choices[0].text async for chunk in stream]
    assert "".join(texts) == "defdefd"
