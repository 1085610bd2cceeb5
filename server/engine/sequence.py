"""A request while the engine works on it."""

from __future__ import annotations

import hashlib
from array import array
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from server.engine.block_pool import BlockHash
from server.engine.ngram_guess import NgramGuesser
from server.engine.prompt_image import PromptImage
from server.request import EngineRequest, FinishReason, ImageUsage, RequestOutput, SamplingParams, TokenLogprob


class TokenMatcher(Protocol):
    """Follows one sequence's output through its grammar.

    is_complete: nothing can follow. allowed: one bit per token id, the lowest bit of byte 0 first.
    """

    @property
    def is_complete(self) -> bool: ...

    @property
    def allowed(self) -> NDArray[np.uint8]: ...

    def advance(self, token_id: int) -> None:
        """The output goes on with this token. Raises GrammarError when nothing could follow it."""


class Sequence:
    """Tokens, KV blocks and progress of one request.

    token_ids: prompt, then generated tokens. num_computed: how many of them have keys and values in `blocks`.
    The last token of a decoding sequence is sampled but not yet computed.
    """

    def __init__(self, request: EngineRequest, block_size: int, images: tuple[PromptImage, ...] = ()) -> None:
        self.request = request
        self.images = images
        self.request_id: str = request.request_id
        self.params: SamplingParams = request.params
        # Smaller runs first: priority, then arrival; the id makes the order total.
        self.order = (request.priority, request.arrival_time, self.request_id)
        self.token_ids: list[int] = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed = 0
        self.num_cached = 0
        self.is_running = False
        self.blocks: list[int] = []
        self.num_preemptions = 0
        self.first_scheduled_time: float | None = None
        self.first_token_time: float | None = None
        self.prompt_logprobs: list[TokenLogprob | None] = []
        self.matcher: TokenMatcher | None = None
        self.encoder_seconds = 0.0
        self._image_was_cached: dict[str, bool] = {}  # digest -> how its embeddings were first found
        self._block_size = block_size
        self._hashes: list[BlockHash] = []
        self._guesser: NgramGuesser | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of the prompt are asked for and not yet complete (a first token completes them)."""
        return self.params.prompt_logprobs is not None and self.num_output_tokens == 0

    def append(self, token_id: int) -> None:
        """The next token was chosen. Raises GrammarError when the sequence's grammar cannot go on from there."""
        self.token_ids.append(token_id)
        if self.matcher is not None and token_id not in self.params.stop_token_ids:
            self.matcher.advance(token_id)

    def guess(self, most: int, least_likelihood: float) -> tuple[int, ...]:
        """The next tokens as `NgramGuesser.guess` sees them. Costs nothing until it is first asked."""
        if self._guesser is None:
            self._guesser = NgramGuesser(self.token_ids)
        return tuple(self._guesser.guess(most, least_likelihood))

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks to add so that num_tokens tokens have a place."""
        return max(0, -(-num_tokens // self._block_size) - len(self.blocks))

    def block_hashes(self) -> list[BlockHash]:
        """A hash per full block of tokens, each chained to all before it."""
        size = self._block_size
        for index in range(len(self._hashes), len(self.token_ids) // size):
            digest = hashlib.blake2b(self._hashes[-1] if self._hashes else b"", digest_size=16)
            digest.update(array("q", self.token_ids[index * size : (index + 1) * size]).tobytes())
            for image in self.images_within(index * size, (index + 1) * size):
                # Which part of which image: the token ids of all images are alike.
                digest.update(f"{image.digest}@{index * size - image.first_token}".encode())
            self._hashes.append(digest.digest())
        return self._hashes

    def images_within(self, begin: int, end: int) -> list[PromptImage]:
        """The images that have a token at positions begin to end - 1."""
        return [
            image for image in self.images if image.first_token < end and image.first_token + image.num_tokens > begin
        ]

    def note_image(self, image: PromptImage, *, was_cached: bool) -> None:
        """An image's embeddings are at hand, encoded now or found; the first of several chunks over it counts."""
        self._image_was_cached.setdefault(image.digest, was_cached)

    def image_usage(self) -> ImageUsage | None:
        """What the images cost so far; None for a request without images."""
        if not self.images:
            return None
        num_hits = sum(self._image_was_cached.values())
        return ImageUsage(
            num_encoded=len(self._image_was_cached) - num_hits,
            num_cache_hits=num_hits,
            encoder_seconds=self.encoder_seconds,
        )

    def reset_for_recompute(self) -> None:
        """Forget computed keys and values (the blocks are given back by the caller); tokens stay."""
        if self.wants_prompt_logprobs:
            self.prompt_logprobs = []
        self.blocks = []
        self.num_computed = 0
        self.num_preemptions += 1

    def stop_reason(self, max_model_len: int) -> tuple[FinishReason, int | None] | None:
        """Why generation ends after the newest token, with the stop token if that is why."""
        newest = self.token_ids[-1]
        if self.num_output_tokens >= self.params.min_new_tokens and newest in self.params.stop_token_ids:
            return "stop", newest
        if self.matcher is not None and self.matcher.is_complete:
            return "stop", None
        if self.num_output_tokens >= self.params.max_new_tokens or self.num_tokens >= max_model_len:
            return "length", None
        return None


class SampledToken:
    """What the sampler chose for one sequence; error says why nothing could be chosen."""

    __slots__ = ("error", "logprob", "token_id")

    def __init__(self, token_id: int, logprob: TokenLogprob | None = None, error: str | None = None) -> None:
        self.token_id = token_id
        self.logprob = logprob
        self.error = error


def failed_output(
    request_id: str, reason: str, *, invalid_field: str | None = None, is_overload: bool = False
) -> RequestOutput:
    """The answer to a request that the engine gives up, see `RequestOutput`."""
    return RequestOutput(
        request_id=request_id,
        finish_reason="error",
        error=reason,
        invalid_field=invalid_field,
        is_overload=is_overload,
    )
