"""The prompts of /v1/completions: text is tokenised, token ids are taken as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

from server.api.context import ServerContext
from server.api.openai_protocol import CompletionBody
from server.errors import RequestError


class CompletionPrompt(NamedTuple):
    """field: its JSON path. text: what `echo` repeats, empty where nothing is to be repeated."""

    token_ids: list[int]
    field: str
    text: str


async def completion_prompts(body: CompletionBody, context: ServerContext) -> list[CompletionPrompt]:
    """All prompts of a body, in order. Raises RequestError."""
    prompt = body.prompt
    if prompt is None:
        raise RequestError("prompt is missing", field="prompt")
    if isinstance(prompt, str):
        return [await _text_prompt(prompt, "prompt", body, context)]
    if not prompt or isinstance(prompt[0], int):
        return [_ids_prompt(prompt, "prompt", body, context)]
    context.check_num_prompts("prompt", len(prompt))
    return [
        await _text_prompt(one, f"prompt[{i}]", body, context)
        if isinstance(one, str)
        else _ids_prompt(one, f"prompt[{i}]", body, context)
        for i, one in enumerate(prompt)
    ]


async def _text_prompt(text: str, field: str, body: CompletionBody, context: ServerContext) -> CompletionPrompt:
    token_ids = await context.encode(text, add_special_tokens=body.add_special_tokens is not False)
    if body.add_BOS is not None:
        token_ids = context.tokenizer.with_bos(token_ids, wanted=body.add_BOS)
    return CompletionPrompt(token_ids, field, text if body.echo else "")


def _ids_prompt(token_ids: Any, field: str, body: CompletionBody, context: ServerContext) -> CompletionPrompt:
    if body.add_BOS:
        raise RequestError(f"add_BOS is for text; put the token into {field} instead", field="add_BOS")
    if not body.echo:
        return CompletionPrompt(token_ids, field, "")
    in_vocabulary = all(0 <= token_id < context.client.limits.vocab_size for token_id in token_ids)
    return CompletionPrompt(token_ids, field, context.tokenizer.decode(token_ids) if in_vocabulary else "")
