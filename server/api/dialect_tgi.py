"""/generate and /generate_stream as TGI speaks them: `inputs` and `parameters` (source: TGI's OpenAPI document).

Without `do_sample` and with all filters off the answer is greedy. A stop sequence stays in the text, as TGI leaves it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from server.api.context import ServerContext
from server.api.dialect_tgi_replies import TGI_EVENTS, TgiReplies
from server.api.json_unions import Texts
from server.api.protocol import RequestBody
from server.api.request_body import check_body, refuse_fields
from server.api.streaming import respond
from server.errors import RequestError
from server.frontend.field_checks import shown
from server.frontend.grammar_fields import json_schema_grammar, regex_grammar
from server.frontend.request_builder import PromptRequest
from server.request import Grammar

_UNSUPPORTED = ("typical_p", "watermark", "adapter_id")
_NEUTRAL = {"typical_p": 1}
_ENGINE_NAMES = {"n": "best_of"}


class TgiGrammar(RequestBody):
    """What the answer must match: value is a JSON schema or a regular expression."""

    type: Literal["json", "regex"]
    value: Any = None

    def compiled(self) -> Grammar:
        """For the engine. Raises RequestError."""
        field = "parameters.grammar.value"
        if self.type == "regex" and not isinstance(self.value, str):
            raise RequestError(f"{field} must be a regular expression, but is {shown(self.value)}", field=field)
        return json_schema_grammar(self.value, field) if self.type == "json" else regex_grammar(self.value, field)


class TgiParameters(RequestBody):
    """`parameters` of a TGI request. Without max_new_tokens the server's own default holds."""

    best_of: int | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    do_sample: bool | None = None
    max_new_tokens: int | None = None
    return_full_text: bool | None = None
    stop: Texts | None = None
    truncate: int | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    seed: int | None = None
    top_n_tokens: int | None = None
    grammar: TgiGrammar | None = None

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn; any filter that is on asks for that."""
        return bool(
            self.do_sample
            or self.temperature not in (None, 1.0)
            or self.top_k not in (None, 0)
            or self.top_p not in (None, 1.0)
        )


class TgiBody(RequestBody):
    """A TGI request. stream: on /generate, the same as /generate_stream."""

    inputs: str
    parameters: TgiParameters | None = None
    stream: bool | None = None


async def answer(
    request: Request, context: ServerContext, fields: dict[str, Any], *, always_stream: bool = False
) -> Response:
    """Continue one prompt. Raises RequestError, EngineUnavailableError."""
    parameters = fields.get("parameters")
    if isinstance(parameters, dict):
        refuse_fields(parameters, _UNSUPPORTED, _NEUTRAL, path="parameters.")
    body = check_body(fields, TgiBody)
    stream = always_stream or body.stream or False
    asked = body.parameters or TgiParameters()
    _check(asked, stream=stream)
    context.check_takes_requests()
    token_ids = await context.encode(body.inputs)
    if asked.truncate is not None:
        token_ids = token_ids[-asked.truncate :]
    seed = _seed(asked)
    prompt = _prompt_request(asked, token_ids, seed, context, with_tokens=stream or bool(asked.details))
    generation = context.start([prompt], streaming=stream)
    replies = TgiReplies(
        body.inputs if asked.return_full_text else "",
        seed,
        context.detokenizers,
        details=asked.details or False,
        prefill=asked.decoder_input_details or False,
        num_top=asked.top_n_tokens or 0,
    )
    return await respond(request, generation, replies, stream=stream, framing=TGI_EVENTS)


def _check(asked: TgiParameters, *, stream: bool) -> None:
    """What contradicts itself. Raises RequestError."""
    best_of = (asked.best_of or 1) > 1
    for is_wrong, field, why in (
        (asked.temperature == 0, "temperature", "must be greater than 0; leave it out for a greedy answer"),
        (asked.truncate is not None and asked.truncate < 1, "truncate", "must be at least 1"),
        (asked.decoder_input_details and not asked.details, "decoder_input_details", "needs details to be true"),
        (asked.decoder_input_details and stream, "decoder_input_details", "is not there in a stream"),
        (asked.top_n_tokens and not (asked.details or stream), "top_n_tokens", "needs details to be true"),
        (best_of and not asked.samples, "best_of", "needs do_sample to be true"),
        (best_of and asked.seed is not None, "seed", "cannot be set together with best_of"),
        (best_of and stream, "best_of", "is not there in a stream"),
    ):
        if is_wrong:
            raise RequestError(f"parameters.{field} {why}", field=f"parameters.{field}")


def _seed(asked: TgiParameters) -> int | None:
    """TGI reports the seed of every answer that was drawn, so one is chosen here if the client did not."""
    if not asked.samples:
        return None
    return secrets.randbits(53) if asked.seed is None else asked.seed


def _prompt_request(
    asked: TgiParameters, token_ids: Sequence[int], seed: int | None, context: ServerContext, *, with_tokens: bool
) -> PromptRequest:
    sampling = asked.model_dump(
        exclude_none=True,
        include={"repetition_penalty", "frequency_penalty", "top_k", "top_p", "temperature", "max_new_tokens", "stop"},
    )
    sampling |= {"seed": seed, "include_stop_str_in_output": True} if asked.samples else {}
    if not asked.samples:
        sampling |= {"temperature": 0.0, "include_stop_str_in_output": True}
    if asked.grammar is not None:
        sampling["grammar"] = asked.grammar.compiled()
    if asked.best_of is not None:
        sampling["n"] = asked.best_of
    return PromptRequest(
        token_ids=list(token_ids),
        prompt_field="inputs",
        sampling=sampling,
        field_of=lambda name: f"parameters.{_ENGINE_NAMES.get(name, name)}",
        default_max_new_tokens=context.config.default_max_tokens,
        logprobs=(asked.top_n_tokens or 0) if with_tokens or sampling.get("n", 1) > 1 else None,
        logprobs_field="parameters.top_n_tokens",
        prompt_logprobs_start=0 if asked.decoder_input_details else None,
        prompt_logprobs=0 if asked.decoder_input_details else None,
    )
