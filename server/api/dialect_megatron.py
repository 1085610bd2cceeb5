"""The request of Megatron's text generation server (`megatron.core.inference.text_generation_server`), in our terms.

What that server documents is honoured or refused by name. It samples from the whole distribution unless told otherwise,
and keeps the end-of-line that stopped a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.api.context import ServerContext
from server.api.json_unions import Texts
from server.api.protocol import RequestBody
from server.errors import RequestError
from server.frontend.field_checks import Range, check_count
from server.frontend.request_builder import PromptRequest

REFUSED: Mapping[str, str] = {
    "beam_width": "beam search is not supported; leave it out",
    "max_len": "it is no longer used; give tokens_to_generate",
    "sentences": "it is no longer used; give prompts",
    "top_p_decay": "a top_p that changes with every token is not supported; leave it out",
    "top_p_bound": "it bounds top_p_decay, which is not supported; leave it out",
    "prevent_newline_after_colon": "it is not supported; leave it out",
    "length_penalty": "it belongs to beam search, which is not supported; leave it out",
}
_NEUTRAL = {"length_penalty": 1}
_MAX_PROMPTS = 128
_DEFAULT_TOKENS = 64
_CLIENT_NAMES = {"max_new_tokens": "tokens_to_generate", "seed": "random_seed", "stop_token_ids": "stop_token"}
_RANGES = {"top_k": Range(0, 1000), "top_p": Range(0, 1), "temperature": Range(0, 100, low_is_open=True)}


class LegacyBody(RequestBody):
    """PUT /api. top_p and top_k of 0 are off. no_log: this server logs no prompts."""

    prompts: Texts
    tokens_to_generate: int | None = None
    logprobs: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    add_BOS: bool | None = None
    stop_on_double_eol: bool | None = None
    stop_on_eol: bool | None = None
    random_seed: int | None = None
    stop_token: int | None = None
    no_log: bool | None = None


def refuse(fields: dict[str, Any]) -> None:
    """Raises RequestError for a documented field that cannot be honoured, unless it asks for nothing."""
    for name, why in REFUSED.items():
        value = fields.pop(name, None)
        if value not in (None, False, 0) and value != _NEUTRAL.get(name):
            raise RequestError(f"{name}: {why}", field=name)


async def prompt_requests(body: LegacyBody, context: ServerContext) -> list[PromptRequest]:
    """One per prompt. Raises RequestError."""
    context.check_num_prompts("prompts", len(body.prompts))
    check_count("prompts", len(body.prompts), _MAX_PROMPTS, "prompts")
    sampling = _sampling(body)
    requests = []
    for index, text in enumerate(body.prompts):
        field = f"prompts[{index}]"
        if not text and not body.add_BOS:
            raise RequestError(f"{field} is empty, which needs add_BOS to be true", field=field)
        token_ids = context.tokenizer.with_bos(
            await context.encode(text, add_special_tokens=False), wanted=body.add_BOS or False
        )
        requests.append(
            PromptRequest(
                token_ids=token_ids,
                prompt_field=field,
                sampling=sampling,
                field_of=_field_of,
                default_max_new_tokens=_DEFAULT_TOKENS,
                logprobs=0 if body.logprobs else None,
                prompt_logprobs_start=0 if body.logprobs else None,
            )
        )
    return requests


def _field_of(name: str) -> str:
    return _CLIENT_NAMES.get(name, name)


def _sampling(body: LegacyBody) -> dict[str, Any]:
    for name, allowed in _RANGES.items():
        value = getattr(body, name)
        if value is not None:
            allowed.check(name, value)
    if body.top_k and body.top_p:
        raise RequestError("top_k and top_p cannot both be set; give one of them", field="top_p")
    if body.tokens_to_generate == 0 and not body.logprobs:
        raise RequestError("tokens_to_generate of 0 needs logprobs to be true", field="tokens_to_generate")
    if body.random_seed is not None:
        Range(0, 2**63 - 1).check("random_seed", body.random_seed)
    stops = ["\n\n"] if body.stop_on_double_eol else []
    given = {
        "max_new_tokens": body.tokens_to_generate,
        "temperature": body.temperature,
        "top_k": body.top_k,
        "top_p": body.top_p or None,
        "seed": body.random_seed,
        "stop": ["\n"] if body.stop_on_eol else stops,
        "stop_token_ids": None if body.stop_token is None else [body.stop_token],
        "include_stop_str_in_output": True,
    }
    return {name: value for name, value in given.items() if value is not None}
