"""Long texts leave the event loop, counted over all of a request."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from image_preprocessing.limits import ImageLimits
from image_preprocessing.settings import ImageSettings
from server.api.context import ServerContext
from server.config import ServerConfig
from server.frontend.chat_options import NEW_ANSWER, ChatOptions
from server.frontend.engine_client import EngineClient
from server.frontend.image_store import ImageStore
from server.frontend.tokenizer import PromptTokenizer

VLM = {"vision_model_type": "siglip", "img_h": 64, "img_w": 64, "patch_dim": 16, "vocab_size": 400}


class RecordingTokenizer(PromptTokenizer):
    """Notes for each call whether it was on the event loop's thread."""

    inline: list[bool]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self._note()
        return super().encode(text, add_special_tokens=add_special_tokens)

    def encode_chat(self, messages: Sequence[dict[str, Any]], options: ChatOptions = NEW_ANSWER) -> list[int]:
        self._note()
        return super().encode_chat(messages, options)

    def render_chat(self, messages: Sequence[dict[str, Any]], options: ChatOptions = NEW_ANSWER) -> str:
        self._note()
        return super().render_chat(messages, options)

    def encode_plain(self, text: str, *, is_beginning: bool) -> list[int]:
        self._note()
        return super().encode_plain(text, is_beginning=is_beginning)

    def _note(self) -> None:
        self.inline.append(threading.current_thread() is threading.main_thread())


@pytest.fixture
def tokenizer(tokenizer_directory: Path) -> RecordingTokenizer:
    tokenizer = RecordingTokenizer.load(tokenizer_directory)
    assert isinstance(tokenizer, RecordingTokenizer)
    tokenizer.inline = []
    return tokenizer


@pytest.fixture
def context(
    make_document: Callable[..., Any], tokenizer: RecordingTokenizer, tmp_path: Path
) -> Iterator[ServerContext]:
    document = make_document("vlm", image_tag_type="", **VLM)
    client = EngineClient(4, 60.0)
    limits = ImageLimits(max_bytes=2**20, max_pixels=10**6)
    images = ImageStore(ImageSettings.from_values(document.values), limits, tmp_path, max_bytes=0, num_workers=1)
    yield ServerContext(document, ServerConfig.from_values(document.values), tokenizer, client, images)
    images.close()
    client.terminate()


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 20), "red").save(file, "PNG")
    return file.getvalue()


async def test_the_texts_of_a_request_are_counted_together(
    context: ServerContext, tokenizer: RecordingTokenizer
) -> None:
    token_ids = [await context.encode("hello " * 1500) for _ in range(5)]
    assert tokenizer.inline == [True, True, False, False, False]
    assert all(ids == token_ids[0] for ids in token_ids)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "x" * 30_000},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": {"a": ["x" * 30_000]}}}]},
        {"role": "user", "content": "", "name": "x" * 30_000},
    ],
)
async def test_all_texts_of_a_conversation_count(
    context: ServerContext, tokenizer: RecordingTokenizer, message: dict[str, Any]
) -> None:
    await context.encode_chat([{"role": "user", "content": "short"}])
    await context.encode_chat([message])
    assert tokenizer.inline == [True, False]


async def test_variables_of_the_template_count(context: ServerContext, tokenizer: RecordingTokenizer) -> None:
    options = NEW_ANSWER._replace(variables={"documents": [{"text": "x" * 30_000}]})
    await context.encode_chat([{"role": "user", "content": "short"}], options)
    assert tokenizer.inline == [False]


@pytest.mark.parametrize(("length", "is_inline"), [(100, True), (30_000, False)])
async def test_with_an_image_too(
    context: ServerContext, tokenizer: RecordingTokenizer, length: int, is_inline: bool
) -> None:
    with ExitStack() as held:
        prompt = await context.encode_with_images("x" * length, [picture()], held, "image_data")
    assert len(prompt.images) == 1
    assert set(tokenizer.inline) == {is_inline}


@pytest.mark.parametrize(("length", "is_inline"), [(100, True), (30_000, False)])
async def test_in_a_conversation_with_an_image_too(
    context: ServerContext, tokenizer: RecordingTokenizer, length: int, is_inline: bool
) -> None:
    from image_preprocessing.placeholders import image_marks

    marks = image_marks(1)
    messages = [{"role": "user", "content": marks[0] + "x" * length}]
    with ExitStack() as held:
        prompt = await context.encode_chat_with_images(messages, NEW_ANSWER, marks, [picture()], held)
    assert len(prompt.images) == 1
    assert tokenizer.inline == [is_inline]
