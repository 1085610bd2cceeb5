"""`/generate` asked about a prompt's own tokens: their number, ids, texts and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluation.datasets import Image
from evaluation.transport.outcome import PromptTokens, Reply
from evaluation.transport.protocol import GENERATE_PATH, count_of, malformed
from evaluation.transport.request import HttpRequest, data_url


def prompt_tokens_request(text: str, images: Sequence[Image], start: int | None) -> HttpRequest:
    """The prompt's tokens from position `start` on; None: only how many there are, which a prefix cache can answer.

    One token is generated because a request must ask for one.
    """

    def make_body(request_id: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "text": text,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "rid": request_id,
        }
        if images:
            body["image_data"] = [data_url(image) for image in images]
        if start is not None:
            body |= {
                "return_logprob": True,
                "logprob_start_len": start,
                "top_logprobs_num": 1,
                "return_text_in_logprobs": True,
            }
        return body

    return HttpRequest(
        path=GENERATE_PATH,
        make_body=make_body,
        parse=lambda body: parse_prompt_tokens(body, start),
        num_image_bytes=sum(image.num_bytes for image in images),
    )


def parse_prompt_tokens(body: Any, start: int | None) -> Reply:
    """What a reply says about the prompt; a failure when it says less than was asked for."""
    try:
        meta = body["meta_info"]
        num_tokens = count_of(meta["prompt_tokens"])
        if num_tokens < 1:
            return malformed("the reply does not say how many tokens the prompt has")
        if start is None:
            return PromptTokens(num_tokens=num_tokens)
        entries = [(logprob, token_id, text) for logprob, token_id, text in meta["input_token_logprobs"]]
        tops = [top[0] if top else None for top in meta["input_top_logprobs"]]
        logprobs = [None if logprob is None else float(logprob) for logprob, _, _ in entries]
        if len(entries) != num_tokens - start or len(tops) != len(entries) or None in logprobs[start == 0 :]:
            return malformed("the reply has not one log-probability for each token that was asked about")
        return PromptTokens(
            num_tokens=num_tokens,
            token_ids=tuple(int(token_id) for _, token_id, _ in entries),
            logprobs=tuple(logprobs),
            texts=tuple(text for _, _, text in entries),
            # A tie is greedy as well: which of two equal tokens comes first means nothing.
            is_greedy=tuple(
                top is not None and logprob is not None and (top[1] == token_id or logprob >= top[0])
                for (logprob, token_id, _), top in zip(entries, tops, strict=True)
            ),
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        return malformed(f"no log-probabilities of the prompt in the reply ({type(error).__name__}: {error})")
