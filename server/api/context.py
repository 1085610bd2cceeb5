"""What every route needs, made once at the start: configuration, tokenizer, engine client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from image_preprocessing.errors import PlaceholderError
from image_preprocessing.placeholders import place_images, split_at_marks
from server.api.checkpoint_digest import CheckpointDigest
from server.api.metrics import ServerMetrics
from server.config import ResolvedDocument, ServerConfig
from server.errors import RequestError
from server.frontend.chat_options import NEW_ANSWER, ChatOptions
from server.frontend.detokenizer import DetokenizerFactory
from server.frontend.engine_client import EngineClient
from server.frontend.field_checks import check_count, shown
from server.frontend.generation import Generation
from server.frontend.image_data import Base64Image, ImageSource
from server.frontend.image_prompt import ImagePrompt, ImagePromptEncoder
from server.frontend.image_store import ImageStore, StoredImage
from server.frontend.reasoning_parser import ReasoningTags
from server.frontend.request_builder import PromptRequest, RequestBuilder
from server.frontend.tokenizer import PromptTokenizer

if TYPE_CHECKING:  # its HTTP client is imported only where images are fetched
    from server.frontend.remote_images import RemoteImages

_INLINE_CHARACTERS = 20_000
"""Of one HTTP request; more is tokenised in a thread, so that nobody else's tokens wait for it."""

_num_tokenised: ContextVar[int] = ContextVar("num_tokenised", default=0)
"""Characters of the current HTTP request so far: each is answered in a task, so in a context, of its own."""


@dataclass
class ServerContext:
    """One model being served. images: None for a model that takes text only. remote_images: None where no image is
    fetched. generations: running requests that can be aborted by their `rid`.
    """

    document: ResolvedDocument
    config: ServerConfig
    tokenizer: PromptTokenizer
    client: EngineClient
    images: ImageStore | None = None
    remote_images: RemoteImages | None = None
    start_time: float = field(default_factory=time.time)
    generations: dict[str, tuple[Generation, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.detokenizers = DetokenizerFactory(self.tokenizer)
        self._builder = RequestBuilder(self.config, self.tokenizer.eos_token_ids)
        self.model_name = self.config.served_model_name or _checkpoint_name(self.document)
        values = self.document.values
        self._image_prompts = ImagePromptEncoder(
            self.tokenizer, values.get("image_tag_type") or "", values.get("vocab_size") or 1
        )
        self.weight_version = Path(self.document.checkpoint.path).name
        self.reasoning_tags = ReasoningTags.from_text(self.config.reasoning_tags)
        self.max_body_bytes = int(self.config.max_body_mb * 2**20)
        self.checkpoint_digest = CheckpointDigest(Path(self.document.checkpoint.path))
        self.metrics = ServerMetrics(self.model_name)
        self.metrics.watch(lambda: self.client.stats, lambda: self.client.num_restarts)
        self.client.observer = self.metrics

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of plain text."""
        return await _tokenised(len(text), lambda: self.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    async def encode_chat(self, messages: Sequence[dict[str, Any]], options: ChatOptions = NEW_ANSWER) -> list[int]:
        """Token ids of a conversation."""
        size = _num_characters([messages, options.variables])
        return await _tokenised(size, lambda: self.tokenizer.encode_chat(messages, options))

    async def encode_with_images(
        self, text: str, sources: Sequence[ImageSource], held: ExitStack, field_name: str
    ) -> ImagePrompt:
        """A `/generate` text with its images, which are held until `held` is closed. Raises RequestError."""
        images = await self._hold(sources, held, field_name)

        def encode() -> ImagePrompt:
            return self._image_prompts.plain(place_images(text, len(images)), images)

        try:
            return await _tokenised(len(text), encode)
        except PlaceholderError as error:
            raise RequestError(f"{field_name}: {error}", field=field_name) from error

    async def encode_chat_with_images(
        self,
        messages: Sequence[dict[str, Any]],
        options: ChatOptions,
        marks: Sequence[str],
        sources: Sequence[ImageSource],
        held: ExitStack,
    ) -> ImagePrompt:
        """A conversation in which marks[i] stands for image i. Raises RequestError."""
        images = await self._hold(sources, held, "messages")

        def encode() -> ImagePrompt:
            return self._image_prompts.chat(
                split_at_marks(self.tokenizer.render_chat(messages, options), marks), images
            )

        try:
            return await _tokenised(_num_characters([messages, options.variables]), encode)
        except PlaceholderError as error:
            raise RequestError(f"messages: {error}", field="messages") from error

    async def _hold(self, sources: Sequence[ImageSource], held: ExitStack, field_name: str) -> list[StoredImage]:
        self.check_takes_images(field_name)
        assert self.images is not None
        check_count(field_name, len(sources), self.config.max_images, "images (--max-images)")
        encoded = await asyncio.gather(*(self._encoded_image(source, field_name) for source in sources))
        images = await self.images.hold(encoded, field_name)
        held.callback(self.images.release, images)
        return images

    async def _encoded_image(self, source: ImageSource, field_name: str) -> bytes:
        if isinstance(source, bytes):
            return source
        if isinstance(source, Base64Image):
            return await asyncio.to_thread(source.decode)
        if self.remote_images is None:
            raise RequestError(
                f"{field_name} has an address; this server fetches nothing, send the image itself as a data URL, or "
                "start the server with --allow-remote-images",
                field=field_name,
            )
        return await self.remote_images.fetch(source.address, field_name)

    def check_takes_images(self, field_name: str) -> None:
        """Raises RequestError where the model takes text only."""
        if self.images is None:
            raise RequestError(f"{field_name}: this model takes text only, no images", field=field_name)

    def check_takes_requests(self) -> None:
        """Raises EngineUnavailableError while nothing can run; asked before work is done for a request."""
        _ = self.client.limits

    def check_num_prompts(self, field_name: str, count: int) -> None:
        """Raises RequestError for a batch that is empty or larger than --max-batch-items."""
        if count == 0:
            raise RequestError(f"{field_name} must have at least one prompt, but is empty", field=field_name)
        check_count(field_name, count, self.config.max_batch_items, "prompts (--max-batch-items)")

    def start(
        self,
        prompts: Sequence[PromptRequest],
        *,
        streaming: bool,
        rids: Sequence[str] = (),
        held: ExitStack | None = None,
    ) -> Generation:
        """Check, build and send; the caller must close the result.

        rids: names under which the prompts, one each, can be aborted. held: what the prompts need until the result is
        closed; taken over if nothing is raised. Raises RequestError, EngineUnavailableError.
        """
        self.client.check_can_add(self._num_sequences(prompts))  # before anything is made for each of them
        kept = ExitStack()
        kept.callback(self._forget, rids)
        limits = self.client.limits
        for rid in rids:
            if rid in self.generations or rids.count(rid) > 1:
                raise RequestError(f"rid {shown(rid)} is already in use by a running request", field="rid")
        generation = Generation(
            self.client,
            self.detokenizers,
            [self._builder.build(prompt, limits) for prompt in prompts],
            streaming=streaming,
            timeout=self.config.request_timeout,
            on_close=kept.close,
        )
        generation.start()
        kept.callback(self.metrics.take_ended, generation.samples)
        if held is not None:
            kept.push(held.pop_all())
        for index, rid in enumerate(rids):
            self.generations[rid] = (generation, index)
        return generation

    def _num_sequences(self, prompts: Sequence[PromptRequest]) -> int:
        """An `n` out of its range is the builder's to refuse, and counts as if it were within."""
        return sum(min(max(prompt.sampling.get("n", 1), 1), self.config.max_choices) for prompt in prompts)

    def _forget(self, rids: Sequence[str]) -> None:
        for rid in rids:
            self.generations.pop(rid, None)


async def _tokenised[T](num_characters: int, tokenise: Callable[[], T]) -> T:
    """At once while all the texts of the current request are short together, and in a thread beyond that."""
    total = _num_tokenised.get() + num_characters
    _num_tokenised.set(total)
    return tokenise() if total <= _INLINE_CHARACTERS else await asyncio.to_thread(tokenise)


def _num_characters(value: Any) -> int:
    """Of all texts, keys included, in a JSON value, where anything else counts as one. No recursion: clients nest."""
    total, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Mapping):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            waiting += item
        else:
            total += 1
    return total


def context_of(request: Request) -> ServerContext:
    """The context of the app that got this request."""
    context = request.app.state.context
    assert isinstance(context, ServerContext)
    return context


def _checkpoint_name(document: ResolvedDocument) -> str:
    return Path(document.values.get("load") or document.checkpoint.path).resolve().name
