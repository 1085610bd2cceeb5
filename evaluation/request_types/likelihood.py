"""How likely a model finds given continuations of a context, by the log-probabilities of their tokens.

Tokens are the server's own, and two of its tokenisations say which of them belong to the continuation: with n tokens in
the context alone, those of context and continuation together from position n on. Where a token would straddle the
border (the context's tokens are not the beginning of the whole's), scoring starts where the two tokenisations part.

The context is sent first and alone, which counts its tokens and puts it into the server's prefix cache; all
continuations follow at once and share it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from evaluation.datasets import Image, Item
from evaluation.prompts import Renderer, default_text
from evaluation.request_types.names import ContinuationName, RequestType
from evaluation.status import Status
from evaluation.transport.outcome import Failure, Outcome, PromptTokens
from evaluation.transport.prompt_tokens import prompt_tokens_request
from evaluation.transport.request import HttpRequest

type Send = Callable[[HttpRequest], Awaitable[Outcome]]


@dataclass(frozen=True, kw_only=True)
class LikelihoodTask:
    """kind: "multiple_choice" or "loglikelihood". continuations: by the letter of the choice, or one under ""."""

    kind: RequestType
    context: str
    continuations: Mapping[str, str]
    images: tuple[Image, ...] = ()
    endpoint: str = field(default="generate", init=False)

    @property
    def all_images(self) -> tuple[Image, ...]:
        return self.images

    def content_with_digests(self) -> dict[str, Any]:
        """Everything the result depends on, with digests in the place of image bytes."""
        return {
            "context": self.context,
            "continuations": dict(self.continuations),
            "images": [{"sha256": image.sha256, "transform": "none"} for image in self.images],
        }


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """One continuation. logprob: sum over its tokens, natural logarithm. is_greedy: every token is the most likely one.

    num_characters: without the blanks around it. straddles: a token lies across the border of context and continuation.
    """

    label: str
    logprob: float
    num_tokens: int
    num_characters: int
    is_greedy: bool
    straddles: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Measured(NamedTuple):
    """likelihoods: of all continuations, in their order; fewer when `failure` says why. outcomes: all requests."""

    likelihoods: list[Likelihood]
    outcomes: list[Outcome]
    failure: Failure | None = None


def multiple_choice_task(item: Item, renderer: Renderer, continuation: ContinuationName) -> LikelihoodTask:
    """A row with options. By text the context is hint and question; by letter it lists the options as well."""
    _refuse_chat(item, RequestType.MULTIPLE_CHOICE)
    if not item.options:
        raise ValueError("--request-type multiple_choice needs options, and this row has none")
    if renderer is not default_text:
        context = renderer(item)
    else:
        lines = [f"Hint: {item.hint}"] if item.hint.strip() else []
        lines.append(f"Question: {item.question}")
        if continuation is ContinuationName.LETTER:
            lines += [f"{letter}. {text}" for letter, text in item.options.items()]
        context = "\n".join([*lines, "Answer:"])
    if continuation is ContinuationName.TEXT:
        continuations = {letter: f" {text.strip()}" for letter, text in item.options.items()}
    else:
        continuations = {letter: f" {letter}" for letter in item.options}
    return _task(RequestType.MULTIPLE_CHOICE, context, continuations, item.images)


def loglikelihood_task(item: Item, renderer: Renderer) -> LikelihoodTask:
    """A row's first answer after its prompt, both as they stand."""
    _refuse_chat(item, RequestType.LOGLIKELIHOOD)
    if not item.references:
        raise ValueError("--request-type loglikelihood needs an answer, and this row has none")
    context = item.raw_prompt if item.raw_prompt is not None and renderer is default_text else renderer(item)
    return _task(RequestType.LOGLIKELIHOOD, context, {"": item.references[0]}, item.images)


def _refuse_chat(item: Item, kind: RequestType) -> None:
    """ValueError for a row whose earlier turns the context would leave out."""
    if item.messages is not None or item.turns:
        raise ValueError(f"--request-type {kind.value} needs 'prompt' or 'question', not a chat")


def _task(
    kind: RequestType, context: str, continuations: Mapping[str, str], images: tuple[Image, ...]
) -> LikelihoodTask:
    """Blanks at the end of the context go to the continuations: tokenisers join a blank to the word after it."""
    stripped = context.rstrip()
    if not stripped:
        raise ValueError("the context is empty; a likelihood needs at least one token before it")
    blanks = context[len(stripped) :]
    joined = {label: blanks + (text.lstrip() if blanks else text) for label, text in continuations.items()}
    if any(not text.strip() for text in joined.values()):
        raise ValueError("a continuation is empty")
    return LikelihoodTask(kind=kind, context=stripped, continuations=joined, images=images)


async def measure(task: LikelihoodTask, send: Send) -> Measured:
    """Likelihoods of all continuations."""
    context = await send(prompt_tokens_request(task.context, task.images, start=None))
    if isinstance(context.reply, Failure):
        return Measured([], [context], context.reply)
    assert isinstance(context.reply, PromptTokens)
    length = context.reply.num_tokens
    async with asyncio.TaskGroup() as group:
        measuring = [group.create_task(_measure_one(task, label, length, send)) for label in task.continuations]
    results = [one.result() for one in measuring]
    likelihoods = [likelihood for one in results for likelihood in one.likelihoods]
    outcomes = [context, *(outcome for one in results for outcome in one.outcomes)]
    return Measured(likelihoods, outcomes, next((one.failure for one in results if one.failure), None))


async def _measure_one(task: LikelihoodTask, label: str, context_length: int, send: Send) -> Measured:
    whole = task.context + task.continuations[label]
    outcome = await send(prompt_tokens_request(whole, task.images, start=context_length - 1))
    reply = outcome.reply
    if isinstance(reply, PromptTokens) and "".join(text or "" for text in reply.texts[1:]) == task.continuations[label]:
        return Measured([_likelihood(task, label, reply, 1)], [outcome])
    if isinstance(reply, Failure) and reply.status is not Status.BAD_REQUEST:
        return Measured([], [outcome], reply)
    # The texts of its last tokens are not the continuation: a token straddles the border, or stands for part of a
    # character. A whole that is shorter than the context is refused. Only all the ids can tell.
    return await _measure_by_ids(task, label, outcome, send)


async def _measure_by_ids(task: LikelihoodTask, label: str, earlier: Outcome, send: Send) -> Measured:
    context = await send(prompt_tokens_request(task.context, task.images, start=0))
    whole = await send(prompt_tokens_request(task.context + task.continuations[label], task.images, start=0))
    outcomes = [earlier, context, whole]
    for outcome in (context, whole):
        if isinstance(outcome.reply, Failure):
            return Measured([], outcomes, outcome.reply)
    assert isinstance(context.reply, PromptTokens) and isinstance(whole.reply, PromptTokens)
    shared = _common_prefix(context.reply.token_ids, whole.reply.token_ids)
    straddles = shared < context.reply.num_tokens
    if shared == 0 or shared == whole.reply.num_tokens:
        message = "no token of the prompt belongs to the continuation alone, or none to the context"
        return Measured([], outcomes, Failure(status=Status.CLIENT_DATA, message=message))
    return Measured([_likelihood(task, label, whole.reply, shared, straddles)], outcomes)


def _likelihood(
    task: LikelihoodTask, label: str, tokens: PromptTokens, start: int, straddles: bool = False
) -> Likelihood:
    logprobs = [logprob for logprob in tokens.logprobs[start:] if logprob is not None]
    return Likelihood(
        label=label,
        logprob=math.fsum(logprobs),
        num_tokens=len(logprobs),
        num_characters=len(task.continuations[label].strip()),
        is_greedy=all(tokens.is_greedy[start:]),
        straddles=straddles,
    )


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
