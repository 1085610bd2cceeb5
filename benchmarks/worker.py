"""`python -m benchmarks.worker KIND`: loads one implementation, then generates when told to.

A process of its own for each, so that memory is measured apart and neither sees the other's threads and allocator.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import BinaryIO, Protocol, runtime_checkable

from benchmarks.errors import MeasurementError
from benchmarks.messages import (
    Failed,
    FromWorker,
    Generate,
    Generated,
    Load,
    Loaded,
    Score,
    Scored,
    ToWorker,
    decode_to_worker,
    encode,
)
from server.arguments.resolver import library_output_to_stderr
from server.process_lifetime import die_with_parent


class Subject(Protocol):
    """An implementation that is loaded and warm."""

    loaded: Loaded


@runtime_checkable
class Generates(Subject, Protocol):
    """One that writes."""

    def generate(self, command: Generate) -> Generated:
        """Continue all prompts."""


@runtime_checkable
class Scores(Subject, Protocol):
    """One that tells how likely given text is."""

    def score(self, command: Score) -> Scored:
        """Score all prompts."""


def main(kind: str) -> int:
    """Until standard input ends. What libraries print goes to standard error."""
    die_with_parent()
    with library_output_to_stderr() as stream:
        for answer in answers(kind, sys.stdin.buffer):
            stream.write(encode(answer).decode() + "\n")
            stream.flush()
    return 0


def answers(kind: str, lines: BinaryIO) -> Iterable[FromWorker]:
    """One for each line."""
    load = decode_to_worker(lines.readline())
    assert isinstance(load, Load), "the first message says what to load"
    try:
        subject = load_subject(kind, load)
        yield subject.loaded
        for line in lines:
            yield answer(subject, decode_to_worker(line))
    except Exception as error:  # whatever ends this process, the parent waits for an answer
        named = isinstance(error, MeasurementError)
        yield Failed(str(error) if named else f"{type(error).__name__}: {error}")


def answer(subject: Subject, command: ToWorker) -> FromWorker:
    """Raises MeasurementError."""
    match command:
        case Generate() if isinstance(subject, Generates):
            return subject.generate(command)
        case Score() if isinstance(subject, Scores):
            return subject.score(command)
        case _:
            raise MeasurementError(f"this worker cannot answer {type(command).__name__}")


def load_subject(kind: str, load: Load) -> Subject:
    """Imported here, for each takes seconds to import and pulls in what the other must not have."""
    match kind:
        case "engine":
            from benchmarks.engine_subject import EngineSubject

            return EngineSubject(load)
        case "hugging_face":
            from benchmarks.hugging_face_subject import HuggingFaceSubject

            return HuggingFaceSubject(load)
        case "hugging_face_vlm":
            from benchmarks.hugging_face_vlm_subject import HuggingFaceVlmSubject

            return HuggingFaceVlmSubject(load)
        case "lm_eval":
            from benchmarks.lm_eval_subject import LmEvalSubject

            return LmEvalSubject(load)
        case _:
            raise MeasurementError(f"there is no worker of kind {kind!r}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
