"""What there is to ask: rows with their keys and prompts, and which of them still need an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evaluation.datasets import Item
from evaluation.keys import GenerationParameters, request_key
from evaluation.prompts import RenderedPrompt, Renderer, render
from evaluation.run_directory.record import Record
from evaluation.run_directory.run_item import RunItem


@dataclass(frozen=True)
class Question:
    """One row of a run. prompt: None for a row that cannot be asked. attempts: requests sent for it in earlier runs."""

    item: RunItem
    prompt: RenderedPrompt | None
    attempts: int = 0


def plan_questions(
    items: Sequence[Item], renderer: Renderer, model_identity: str, parameters: GenerationParameters
) -> list[Question]:
    """Every row with its key, in the order of the data file. A row whose prompt cannot be made becomes a bad row."""
    return [_question(item, renderer, model_identity, parameters) for item in items]


def _question(item: Item, renderer: Renderer, model_identity: str, parameters: GenerationParameters) -> Question:
    prompt = None
    if item.error is None:
        try:
            prompt = render(item, renderer)
        except ValueError as error:
            item = item.as_bad(str(error))
    key = request_key(
        item_id=item.item_id,
        row=item.row,
        prompt=prompt,
        model_identity=model_identity,
        parameters=parameters.to_dict(),
    )
    return Question(RunItem.of(key, item), prompt)


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
        elif question.prompt is not None and _asks_again(record, retry_failed):
            remaining.append(replace(question, attempts=record.attempt))
    return remaining


def _asks_again(record: Record, retry_failed: bool | None) -> bool:
    if record.status.is_answered:
        return False
    return record.is_retryable if retry_failed is None else retry_failed
