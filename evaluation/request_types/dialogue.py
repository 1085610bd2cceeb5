"""Dialogues: a function of the task's own gives the next turn from what was said so far, or ends the dialogue.

Without one, the turns are those of the row (`turns` in a JSONL file). A turn that fails ends its dialogue; the earlier
ones are kept.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.canonical import well_formed
from evaluation.datasets import Image, Item, Message
from evaluation.datasets.placeholders import place_images
from evaluation.errors import DatasetError
from evaluation.prompts import RenderedPrompt
from evaluation.request_types.names import RequestType
from evaluation.status import Status
from evaluation.thinking import ThinkingSplit
from evaluation.transport.outcome import Completion, Failure, Outcome
from evaluation.transport.protocol import answer_status

MAX_ROUNDS = 100


class Turn(NamedTuple):
    """What the user says next. state: handed to the function again in the next round."""

    text: str
    state: Any = None


type NextTurn = Callable[[Mapping[str, str], tuple[str, ...], int, Any], Turn | str | None]
"""(document's columns, answers so far, number of the round from 0, state) to the next turn, None at the end. A text
alone leaves the state as it is."""


@dataclass(frozen=True)
class TurnFunction:
    """A `NextTurn` with the identity of its source."""

    call: NextTurn
    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class DialogueTask:
    """images: shown with the first turn."""

    columns: Mapping[str, str]
    next_turn: TurnFunction | None
    turns: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()
    kind: RequestType = field(default=RequestType.MULTI_ROUND, init=False)
    endpoint: str = field(default="chat", init=False)

    @property
    def all_images(self) -> tuple[Image, ...]:
        return self.images

    def content_with_digests(self) -> dict[str, Any]:
        """Everything the answers depend on: the turns, or the function and all that it is given."""
        function = self.next_turn
        return {
            "turns": list(self.turns),
            "function": {"name": function.name, "sha256": function.sha256} if function else None,
            "columns": dict(self.columns) if function else None,
            "images": [{"sha256": image.sha256, "transform": "none"} for image in self.images],
        }

    def turn(self, answers: tuple[str, ...], state: Any) -> Turn | None:
        """The next turn after these answers. ValueError when the task's function fails."""
        if self.next_turn is None:
            return Turn(self.turns[len(answers)]) if len(answers) < len(self.turns) else None
        try:
            turn: Any = self.next_turn.call(self.columns, answers, len(answers), state)
        except Exception as error:  # the function is the user's: its faults end this dialogue, not the run
            raise ValueError(f"{self.next_turn.name} fails in round {len(answers)}: {error!r}") from None
        match turn:
            case None:
                return None
            case str():
                return Turn(well_formed(turn), state)
            case Turn(text=str(text)):
                return Turn(well_formed(text), turn.state)
        raise ValueError(f"{self.next_turn.name} must return a text, a Turn or None, not {type(turn).__name__}")


class Dialogue(NamedTuple):
    """rounds: {prompt, text, answer, reasoning, finish_reason} of each answered turn. last: the reply that ended it."""

    rounds: list[dict[str, Any]]
    outcomes: list[Outcome]
    last: Completion | Failure


def dialogue_task(item: Item, next_turn: TurnFunction | None) -> DialogueTask:
    """The dialogue of a row; ValueError when it has no turns and no function gives any, or is a chat already."""
    if item.messages is not None:
        raise ValueError(
            f"--request-type {RequestType.MULTI_ROUND.value} needs 'turns', or --next-turn with 'question' or "
            "'prompt', not 'messages': what they say and show would not be sent"
        )
    if next_turn is None and not item.turns:
        raise ValueError("a dialogue needs 'turns' in the row, or --next-turn FILE:FUNCTION")
    return DialogueTask(columns=item.columns, next_turn=next_turn, turns=item.turns, images=item.images)


async def converse(
    task: DialogueTask, ask: Callable[[RenderedPrompt], Awaitable[Outcome]], thinking: ThinkingSplit
) -> Dialogue | str:
    """The whole dialogue, or why not even its first turn could be had. A model sees its answers without thinking."""
    rounds: list[dict[str, Any]] = []
    outcomes: list[Outcome] = []
    messages: list[Message] = []
    answers: tuple[str, ...] = ()
    state: Any = None
    while True:
        try:
            turn = task.turn(answers, state)
            if turn is None or len(answers) == MAX_ROUNDS:
                break
            content = place_images(turn.text, task.images if not answers else ())
        except ValueError as error:
            return Dialogue(rounds, outcomes, _bad(str(error))) if outcomes else str(error)
        messages.append(Message("user", content))
        outcome = await ask(RenderedPrompt(endpoint="chat", messages=tuple(messages)))
        outcomes.append(outcome)
        if not isinstance(outcome.reply, Completion):
            assert isinstance(outcome.reply, Failure)
            return Dialogue(rounds, outcomes, outcome.reply)
        split = thinking.split(outcome.reply.text, outcome.reply.reasoning)
        rounds.append(_round(turn.text, outcome.reply, split.answer, split.reasoning))
        if not answer_status(split.answer, outcome.reply.finish_reason).is_answered:
            return Dialogue(rounds, outcomes, outcome.reply)
        messages.append(Message("assistant", split.answer))
        answers, state = (*answers, split.answer), turn.state
    if not outcomes:
        return f"{task.next_turn.name if task.next_turn else 'the row'} has no first turn"
    assert isinstance(outcomes[-1].reply, Completion)
    return Dialogue(rounds, outcomes, outcomes[-1].reply)


def load_turn_function(spec: str) -> TurnFunction:
    """The function named `FILE.py:FUNCTION`; DatasetError when there is none."""
    path_text, _, name = spec.rpartition(":")
    path = Path(path_text)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"--next-turn {spec}: {path}: {error.strerror}; it names FILE.py:FUNCTION") from None
    module_spec = importlib.util.spec_from_file_location(f"megaserve_task_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise DatasetError(f"--next-turn {spec}: {path} is no Python file")
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:  # the file is the user's and may raise anything
        raise DatasetError(f"--next-turn {spec}: {path} cannot be imported: {error!r}") from None
    function = getattr(module, name, None)
    if not callable(function):
        raise DatasetError(f"--next-turn {spec}: {path} has no function {name!r}")
    return TurnFunction(function, name, hashlib.sha256(source).hexdigest())


def _round(prompt: str, reply: Completion, answer: str, reasoning: str) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "text": reply.text,
        "answer": answer,
        "reasoning": reasoning or None,
        "finish_reason": reply.finish_reason,
    }


def _bad(message: str) -> Failure:
    return Failure(status=Status.CLIENT_DATA, message=message)
