"""`python -m benchmarks.worker engine|hugging_face`: loads one implementation, then generates when told to.

A process of its own for each, so that memory is measured apart and neither sees the other's threads and allocator.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import BinaryIO, Protocol

from benchmarks.errors import MeasurementError
from benchmarks.messages import Failed, FromWorker, Generate, Generated, Load, Loaded, decode_to_worker, encode
from server.arguments.resolver import library_output_to_stderr
from server.process_lifetime import die_with_parent


class Subject(Protocol):
    """An implementation that is loaded and warm."""

    loaded: Loaded

    def generate(self, command: Generate) -> Generated:
        """Continue all prompts."""


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
            command = decode_to_worker(line)
            assert isinstance(command, Generate), "what is loaded stays loaded"
            yield subject.generate(command)
    except Exception as error:  # whatever ends this process, the parent waits for an answer
        named = isinstance(error, MeasurementError)
        yield Failed(str(error) if named else f"{type(error).__name__}: {error}")


def load_subject(kind: str, load: Load) -> Subject:
    """Imported here, for each takes seconds to import and pulls in what the other must not have."""
    match kind:
        case "engine":
            from benchmarks.engine_subject import EngineSubject

            return EngineSubject(load)
        case "hugging_face":
            from benchmarks.hugging_face_subject import HuggingFaceSubject

            return HuggingFaceSubject(load)
        case _:
            raise MeasurementError(f"there is no worker of kind {kind!r}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
