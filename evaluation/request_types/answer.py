"""How a question of any kind becomes a record: the one place that knows all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from evaluation.answers import bad_row_record, base_record, error_of, with_completion
from evaluation.keys import GenerationParameters
from evaluation.plan import Question
from evaluation.prompts import RenderedPrompt
from evaluation.request_types.dialogue import DialogueTask, converse
from evaluation.request_types.likelihood import Likelihood, LikelihoodTask, measure
from evaluation.request_types.names import RequestType
from evaluation.run_directory.record import Record
from evaluation.status import Status
from evaluation.thinking import ThinkingSplit
from evaluation.transport.outcome import Completion, Failure, Outcome
from evaluation.transport.protocol import generation_request
from evaluation.transport.request import HttpRequest


class Sender(Protocol):
    """What carries requests (`transport.client.Client`)."""

    async def send(self, key: str, request: HttpRequest) -> Outcome: ...


@dataclass(frozen=True, kw_only=True)
class Answerer:
    """model: its name on chat endpoints."""

    sender: Sender
    model: str
    parameters: GenerationParameters
    thinking: ThinkingSplit

    async def answer(self, question: Question) -> Record:
        """The final record of a question. Raises RunAbortedError when nothing can be asked any more."""
        match question.task:
            case None:
                return bad_row_record(question.item)
            case RenderedPrompt() as prompt:
                outcome = await self._ask(question, prompt)
                record = base_record(question.item, [outcome], question.attempts)
                reply = outcome.reply
                return with_completion(record, reply, self.thinking) if isinstance(reply, Completion) else record
            case LikelihoodTask() as task:
                return await self._measure(question, task)
            case DialogueTask() as task:
                return await self._converse(question, task)

    async def _ask(self, question: Question, prompt: RenderedPrompt) -> Outcome:
        return await self.sender.send(question.item.key, generation_request(prompt, self.parameters, self.model))

    async def _measure(self, question: Question, task: LikelihoodTask) -> Record:
        measured = await measure(task, partial(self.sender.send, question.item.key))
        record = base_record(question.item, measured.outcomes, question.attempts)
        if measured.failure:
            return _failed(record, measured.failure)
        likelihoods = measured.likelihoods
        answer = likeliest(likelihoods) if task.kind is RequestType.MULTIPLE_CHOICE else f"{likelihoods[0].logprob:.6f}"
        entries = [likelihood.to_dict() for likelihood in likelihoods]
        return replace(record, status=Status.OK, error=None, answer=answer, likelihoods=entries)

    async def _converse(self, question: Question, task: DialogueTask) -> Record:
        dialogue = await converse(task, partial(self._ask, question), self.thinking)
        if isinstance(dialogue, str):
            return bad_row_record(replace(question.item, error=dialogue))
        record = replace(
            base_record(question.item, dialogue.outcomes, question.attempts), rounds=dialogue.rounds or None
        )
        if isinstance(dialogue.last, Completion):
            return with_completion(record, dialogue.last, self.thinking)
        return _failed(record, dialogue.last)


def likeliest(likelihoods: Sequence[Likelihood]) -> str:
    """The letter of the choice with the largest log-probability; the first of equal ones."""
    return max(likelihoods, key=lambda likelihood: likelihood.logprob).label


def _failed(record: Record, failure: Failure) -> Record:
    return replace(record, status=failure.status, error=error_of(failure))
