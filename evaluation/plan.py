"""What there is to ask: rows with their keys and tasks, which of them still need an answer, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evaluation.datasets import Item
from evaluation.datasets.messages import text_of
from evaluation.keys import GenerationParameters, request_key
from evaluation.prompts import RenderedPrompt, Renderer, default_text, render
from evaluation.request_types.dialogue import DialogueTask, TurnFunction, dialogue_task
from evaluation.request_types.likelihood import LikelihoodTask, loglikelihood_task, multiple_choice_task
from evaluation.request_types.names import ContinuationName, RequestType
from evaluation.run_directory.record import Record
from evaluation.run_directory.run_item import RunItem

_TAIL_ROUNDS = 2

type Task = RenderedPrompt | LikelihoodTask | DialogueTask


@dataclass(frozen=True, kw_only=True)
class AskingSettings:
    """What every question of a run is made with. next_turn: for dialogues, None takes the rows' own turns."""

    request_type: RequestType = RequestType.GENERATE_UNTIL
    parameters: GenerationParameters = field(default_factory=GenerationParameters)
    renderer: Renderer = default_text
    continuation: ContinuationName = ContinuationName.TEXT
    next_turn: TurnFunction | None = None

    def to_dict(self) -> dict[str, Any]:
        """What answers depend on beside the prompt, as the manifest and the keys have it."""
        match self.request_type:
            case RequestType.GENERATE_UNTIL:
                return self.parameters.to_dict()
            case RequestType.MULTI_ROUND:
                values = {"request_type": self.request_type.value, **self.parameters.to_dict()}
                return {**values, "dialogue function": self.next_turn.sha256} if self.next_turn else values
            case RequestType.LOGLIKELIHOOD:
                return {"request_type": self.request_type.value}
            case RequestType.MULTIPLE_CHOICE:
                return {"request_type": self.request_type.value, "continuation": self.continuation.value}

    def task(self, item: Item) -> Task:
        """What is asked for a good row; ValueError when the row lacks what that takes."""
        match self.request_type:
            case RequestType.GENERATE_UNTIL if item.turns:
                raise ValueError(f"'turns' need --request-type {RequestType.MULTI_ROUND.value}")
            case RequestType.GENERATE_UNTIL:
                return render(item, self.renderer)
            case RequestType.MULTI_ROUND:
                return dialogue_task(item, self.next_turn)
            case RequestType.LOGLIKELIHOOD:
                return loglikelihood_task(item, self.renderer)
            case RequestType.MULTIPLE_CHOICE:
                return multiple_choice_task(item, self.renderer, self.continuation)


@dataclass(frozen=True)
class Question:
    """One row of a run. task: None for a row that cannot be asked. attempts: requests sent for it in earlier runs.
    is_padding: asked only so that every rank asks the same number; the answer is thrown away."""

    item: RunItem
    task: Task | None
    attempts: int = 0
    is_padding: bool = False


def plan_questions(items: Sequence[Item], settings: AskingSettings, model_identity: str) -> list[Question]:
    """Every row with its key, in the order of the data. A row whose task cannot be made becomes a bad row."""
    parameters = settings.to_dict()
    return [_question(item, settings, model_identity, parameters) for item in items]


def _question(item: Item, settings: AskingSettings, model_identity: str, parameters: Mapping[str, Any]) -> Question:
    task = None
    if item.error is None:
        try:
            task = settings.task(item)
        except ValueError as error:
            item = item.as_bad(str(error))
    key = request_key(
        item_id=item.item_id, row=item.row, prompt=task, model_identity=model_identity, parameters=parameters
    )
    return Question(RunItem.of(key, item), task)


def remaining_questions(
    questions: Sequence[Question], records: Mapping[str, Record], retry_failed: bool | None
) -> list[Question]:
    """Questions to ask now.

    retry_failed: None asks again what could pass, True everything that has no answer, False nothing that has an
    outcome.
    """
    remaining = []
    for question in questions:
        record = records.get(question.item.key)
        if record is None:
            remaining.append(question)
        elif question.task is not None and _asks_again(record, retry_failed):
            remaining.append(replace(question, attempts=record.attempt))
    return remaining


def _asks_again(record: Record, retry_failed: bool | None) -> bool:
    if record.status.is_answered:
        return False
    return record.is_retryable if retry_failed is None else retry_failed


def in_order_of_asking(questions: Sequence[Question], concurrency: int) -> list[Question]:
    """The same questions. Those on the same images follow one another, so that the server encodes an image once and
    finds it in its caches; otherwise the order stays. The last `_TAIL_ROUNDS` times `concurrency` are asked longest
    first: whatever ends last should not have begun last."""
    groups: dict[object, list[Question]] = {}
    for number, question in enumerate(questions):
        groups.setdefault(question.item.images or number, []).append(question)
    ordered = [question for group in groups.values() for question in group]
    start = max(0, len(ordered) - _TAIL_ROUNDS * concurrency)
    return ordered[:start] + sorted(ordered[start:], key=_prompt_length, reverse=True)


def _prompt_length(question: Question) -> int:
    """Characters of the prompt; sorting by it keeps the order of equal ones."""
    match question.task:
        case RenderedPrompt(text=text, messages=messages):
            return len(text) + sum(len(text_of(message.content)) for message in messages)
        case LikelihoodTask(context=context):
            return len(context)
        case DialogueTask(turns=turns):
            return sum(map(len, turns))
        case None:
            return 0
