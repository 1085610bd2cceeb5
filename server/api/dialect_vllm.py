"""/generate as vLLM's demo server speaks it (`vllm.entrypoints.api_server`): `prompt` and flat sampling parameters.

The reply has prompt and completion as one text, per sample; a stream is one JSON object a line, each with all text so
far of all samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.api.context import ServerContext
from server.api.protocol import SamplingFields
from server.api.request_body import check_body, refuse_fields
from server.api.streaming import JSON_LINES, respond
from server.frontend.request_builder import PromptRequest
from server.frontend.sample import Sample

_UNSUPPORTED = ("best_of", "logprobs", "prompt_logprobs", "use_beam_search", "length_penalty", "bad_words")
_NEUTRAL = {"best_of": 1, "length_penalty": 1}
_ENGINE_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}


class VllmBody(SamplingFields):
    """A demo server's request. Without max_tokens the server's own default holds."""

    prompt: str
    stream: bool | None = None
    min_tokens: int | None = None


async def answer(request: Request, context: ServerContext, fields: dict[str, Any]) -> Response:
    """Continue one prompt. Raises RequestError, EngineUnavailableError."""
    refuse_fields(fields, _UNSUPPORTED, _NEUTRAL)
    body = check_body(fields, VllmBody)
    context.check_takes_requests()
    given = body.model_dump(exclude_none=True, exclude={"prompt", "stream"})
    client_names = {_ENGINE_NAMES[name]: name for name in given if name in _ENGINE_NAMES}
    prompt = PromptRequest(
        token_ids=await context.encode(body.prompt),
        prompt_field="prompt",
        sampling={_ENGINE_NAMES.get(name, name): value for name, value in given.items()},
        field_of=lambda name: client_names.get(name, name),
        default_max_new_tokens=context.config.default_max_tokens,
    )
    generation = context.start([prompt], streaming=body.stream or False)
    replies = VllmReplies(body.prompt, generation.samples)
    return await respond(request, generation, replies, stream=body.stream or False, framing=JSON_LINES)


class VllmReplies:
    """Makes replies for one request. samples: all of it, those without any text yet included."""

    is_openai = False

    def __init__(self, prompt: str, samples: Sequence[Sample]) -> None:
        self._prompt = prompt
        self._samples = samples

    def body(self, samples: Sequence[Sample]) -> Any:
        return {"text": [self._prompt + sample.text for sample in samples]}

    def first(self) -> Iterable[Any]:
        return ()

    def events(self, changed: Sequence[Sample]) -> Iterable[Any]:
        """Cumulative, and of all samples, whichever changed."""
        yield self.body(self._samples)

    def last(self) -> Iterable[Any]:
        return ()
