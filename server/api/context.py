"""What every route needs, made once at the start: configuration, tokenizer, engine client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request

from server.config import ResolvedDocument, ServerConfig
from server.errors import RequestError
from server.frontend.detokenizer import DetokenizerFactory
from server.frontend.engine_client import EngineClient
from server.frontend.field_checks import check_count
from server.frontend.generation import Generation
from server.frontend.request_builder import PromptRequest, RequestBuilder
from server.frontend.tokenizer import PromptTokenizer

_INLINE_CHARACTERS = 20_000
"""Longer texts are tokenised in a thread, so that nobody else's tokens wait for them."""


@dataclass
class ServerContext:
    """One model being served. generations: running requests that can be aborted by their `rid`."""

    document: ResolvedDocument
    config: ServerConfig
    tokenizer: PromptTokenizer
    client: EngineClient
    start_time: float = field(default_factory=time.time)
    generations: dict[str, tuple[Generation, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.detokenizers = DetokenizerFactory(self.tokenizer)
        self._builder = RequestBuilder(self.config, self.tokenizer.eos_token_ids)
        self.model_name = self.config.served_model_name or _checkpoint_name(self.document)
        self.max_body_bytes = int(self.config.max_body_mb * 2**20)

    async def encode(self, text: str) -> list[int]:
        """Token ids of plain text."""
        if len(text) <= _INLINE_CHARACTERS:
            return self.tokenizer.encode(text)
        return await asyncio.to_thread(self.tokenizer.encode, text)

    async def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Token ids of a conversation."""
        if sum(len(message["content"]) for message in messages) <= _INLINE_CHARACTERS:
            return self.tokenizer.encode_chat(messages)
        return await asyncio.to_thread(self.tokenizer.encode_chat, messages)

    def check_takes_requests(self) -> None:
        """Raises EngineUnavailableError while nothing can run; asked before work is done for a request."""
        _ = self.client.limits

    def check_num_prompts(self, field_name: str, count: int) -> None:
        """Raises RequestError for a batch that is empty or larger than --max-batch-items."""
        if count == 0:
            raise RequestError(f"{field_name} must have at least one prompt, but is empty", field=field_name)
        check_count(field_name, count, self.config.max_batch_items, "prompts (--max-batch-items)")

    def start(self, prompts: Sequence[PromptRequest], *, streaming: bool, rids: Sequence[str] = ()) -> Generation:
        """Check, build and send; the caller must close the result.

        rids: names under which the prompts, one each, can be aborted. Raises RequestError, EngineUnavailableError.
        """
        limits = self.client.limits
        for rid in rids:
            if rid in self.generations or rids.count(rid) > 1:
                raise RequestError(f"rid {rid!r} is already in use by a running request", field="rid")
        generation = Generation(
            self.client,
            self.detokenizers,
            [self._builder.build(prompt, limits) for prompt in prompts],
            streaming=streaming,
            timeout=self.config.request_timeout,
            on_close=lambda: self._forget(rids),
        )
        generation.start()
        for index, rid in enumerate(rids):
            self.generations[rid] = (generation, index)
        return generation

    def _forget(self, rids: Sequence[str]) -> None:
        for rid in rids:
            self.generations.pop(rid, None)


def context_of(request: Request) -> ServerContext:
    """The context of the app that got this request."""
    context = request.app.state.context
    assert isinstance(context, ServerContext)
    return context


def _checkpoint_name(document: ResolvedDocument) -> str:
    return Path(document.values.get("load") or document.checkpoint.path).resolve().name
