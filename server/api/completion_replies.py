"""Replies of /v1/completions, whole or as events."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from server.api.completion_prompts import CompletionPrompt
from server.api.context import ServerContext
from server.api.openai_protocol import CompletionBody
from server.api.openai_request import finish_fields, usage_of, wants_usage_event
from server.api.stream_progress import Part, StreamProgress
from server.api.token_logprobs import Position, TextOffsets, completion_logprobs, prompt_logprobs_by_id
from server.frontend.sample import Sample


class CompletionReplies:
    """Makes replies for one request. An echoed prompt stands before the text, in a stream in the first event."""

    is_openai = True

    def __init__(self, body: CompletionBody, context: ServerContext, prompts: Sequence[CompletionPrompt]) -> None:
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._body = body
        self._context = context
        self._prompts = prompts
        self._progress = StreamProgress(body.streaming_interval or 1)
        self._offsets: dict[int, TextOffsets] = {}  # by the sample's index

    def body(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """The whole reply of a request without `stream`."""
        return self._envelope([self._choice(Part(sample)) for sample in samples]) | {"usage": usage_of(samples)}

    def first(self) -> Iterable[Any]:
        return ()

    def events(self, changed: Sequence[Sample]) -> Iterable[Any]:
        """Deltas: each event holds the text since the one before."""
        for sample in changed:
            part = self._progress.next_part(sample)
            if part is not None:
                yield self._envelope([self._choice(part)])

    def last(self) -> Iterable[Any]:
        if wants_usage_event(self._body):
            yield self._envelope([]) | {"usage": usage_of(self._progress.samples)}

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._context.model_name,
            "choices": choices,
        }

    def _choice(self, part: Part) -> dict[str, Any]:
        sample = part.sample
        echoed = self._prompts[sample.place.prompt_index].text
        choice = {
            "index": sample.place.sample_index,
            "text": (echoed if part.is_first else "") + part.text,
            "logprobs": None,
            **finish_fields(sample),
        }
        if self._body.logprobs is not None:
            offsets = self._offsets.setdefault(sample.place.sample_index, TextOffsets(self._context.detokenizers))
            choice["logprobs"] = completion_logprobs(
                self._positions(part), self._body.logprobs, self._context.detokenizers, offsets
            )
        return choice | self._token_fields(part)

    def _positions(self, part: Part) -> list[Position]:
        generated: list[Position] = [(entry.token_id, entry) for entry in part.sample.logprobs[part.first_token :]]
        if not (self._body.echo and part.is_first):
            return generated
        return [*zip(part.sample.request.prompt_token_ids, part.sample.prompt_logprobs, strict=True), *generated]

    def _token_fields(self, part: Part) -> dict[str, Any]:
        """What was asked for beyond OpenAI: by vLLM's names, and by Megatron's."""
        body, sample = self._body, part.sample
        fields: dict[str, Any] = {}
        if part.is_first and (body.return_token_ids or body.return_tokenized_data):
            fields["prompt_token_ids"] = sample.request.prompt_token_ids
        if body.return_token_ids:
            fields["token_ids"] = part.token_ids
        if body.return_tokenized_data:
            fields["generation_token_ids"] = part.token_ids
            fields["generation_log_probs"] = [entry.logprob for entry in sample.logprobs[part.first_token :]]
        if body.prompt_logprobs is not None:
            fields["prompt_logprobs"] = prompt_logprobs_by_id(
                sample.request.prompt_token_ids,
                sample.prompt_logprobs,
                body.prompt_logprobs,
                self._context.detokenizers,
            )
        return fields
