"""Replies of /v1/chat/completions, whole or as events."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from server.api.context import ServerContext
from server.api.openai_protocol import ChatBody
from server.api.openai_request import finish_fields, usage_of, wants_usage_event
from server.api.stream_progress import Part, StreamProgress
from server.api.token_logprobs import chat_logprobs, prompt_logprobs_by_id
from server.api.tool_replies import AnswerParts
from server.frontend.answer_format import AnswerFormat
from server.frontend.sample import Sample


class ChatReplies:
    """Makes replies for one request."""

    is_openai = True

    def __init__(self, body: ChatBody, context: ServerContext, answer_format: AnswerFormat) -> None:
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._body = body
        self._context = context
        self._parts = None if answer_format.is_plain else AnswerParts(answer_format)
        self._progress = StreamProgress(body.streaming_interval or 1)

    def body(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """The whole reply of a request without `stream`."""
        choices = [self._choice(Part(sample)) for sample in samples]
        return self._envelope("chat.completion", choices) | {
            "usage": usage_of(samples),
            **self._about_prompt(samples[0]),
        }

    def first(self) -> Iterable[Any]:
        """The role of each choice, before its text."""
        for index in range(self._body.n or 1):
            choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
            yield self._chunk(choice | {"finish_reason": None, "stop_reason": None})

    def events(self, changed: Sequence[Sample]) -> Iterable[Any]:
        """Deltas: each event holds the text since the one before."""
        for sample in changed:
            part = self._progress.next_part(sample)
            choice = None if part is None else self._delta(part)
            if part is not None and choice is not None:
                about_prompt = self._about_prompt(sample) if part.is_first else {}
                yield self._chunk(choice) | about_prompt

    def last(self) -> Iterable[Any]:
        if wants_usage_event(self._body):
            yield self._envelope("chat.completion.chunk", []) | {"usage": usage_of(self._progress.samples)}

    def _choice(self, part: Part) -> dict[str, Any]:
        fields = {"content": part.text} if self._parts is None else self._parts.message(part)
        message = {"role": "assistant"} | fields | self._tokenized_data(part)
        if self._body.return_raw_text:
            message["raw_text"] = self._context.tokenizer.decode(part.sample.request.prompt_token_ids) + part.text
        return {"index": part.sample.place.sample_index, "message": message, **self._after_text(part)}

    def _delta(self, part: Part) -> dict[str, Any] | None:
        """None where the text so far does not say what it belongs to, and nothing else is to be told."""
        fields = ({"content": part.text} if part.text else {}) if self._parts is None else self._parts.read(part)
        delta = fields | self._tokenized_data(part)
        if not (delta or part.sample.is_done or self._body.logprobs or self._body.return_token_ids):
            return None
        return {"index": part.sample.place.sample_index, "delta": delta, **self._after_text(part)}

    def _after_text(self, part: Part) -> dict[str, Any]:
        logprobs = None
        if self._body.logprobs:
            logprobs = chat_logprobs(part.sample.logprobs[part.first_token :], self._context.detokenizers)
        token_ids = {"token_ids": part.token_ids} if self._body.return_token_ids else {}
        return {"logprobs": logprobs, **self._finish_fields(part), **token_ids}

    def _finish_fields(self, part: Part) -> dict[str, Any]:
        fields = finish_fields(part.sample)
        if fields["finish_reason"] == "stop" and self._parts is not None and self._parts.has_calls(part):
            fields["finish_reason"] = "tool_calls"
        return fields

    def _tokenized_data(self, part: Part) -> dict[str, Any]:
        """What Megatron's clients send back with the next turn, so that it is not tokenised anew."""
        if not (self._body.return_tokenized_data or self._body.prevent_retokenization):
            return {}
        fields: dict[str, Any] = {
            "generation_token_ids": part.token_ids,
            "generation_log_probs": [entry.logprob for entry in part.sample.logprobs[part.first_token :]],
        }
        if part.is_first:
            fields["prompt_token_ids"] = part.sample.request.prompt_token_ids
        return fields

    def _about_prompt(self, sample: Sample) -> dict[str, Any]:
        """The conversation's own tokens, which all choices share; vLLM's names and places."""
        fields: dict[str, Any] = {}
        token_ids = sample.request.prompt_token_ids
        if self._body.return_token_ids:
            fields["prompt_token_ids"] = token_ids
        if self._body.prompt_logprobs is not None:
            fields["prompt_logprobs"] = prompt_logprobs_by_id(
                token_ids, sample.prompt_logprobs, self._body.prompt_logprobs, self._context.detokenizers
            )
        return fields

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return self._envelope("chat.completion.chunk", [choice])

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._context.model_name,
            "choices": choices,
        }
