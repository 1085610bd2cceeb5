"""A worker as the parent sees it: a process that answers one message at a time, or is reported with its last words."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

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
    decode_from_worker,
    encode,
)
from benchmarks.process_log import ProcessLog
from benchmarks.process_memory import tree_pss_bytes
from server.process_lifetime import bound_command

_ANSWER_TIMEOUT = 1800.0
"""Seconds for one answer; the slowest known takes about a minute, so a worker that needs longer hangs."""

_EXIT_TIMEOUT = 20.0


class WorkerProgram(NamedTuple):
    """What runs in the worker when it is not `benchmarks.worker`."""

    command: Sequence[str]
    variables: Mapping[str, str]


class WorkerProcess:
    """Dies with this process. Use it as a context manager."""

    def __init__(self, kind: str, load: Load, program: WorkerProgram | None = None) -> None:
        self._kind = kind
        self._log = ProcessLog()
        threads = str(load.threads)
        if program is None:
            variables = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}
            program = WorkerProgram([sys.executable, "-m", "benchmarks.worker", kind], variables)
        self._process = subprocess.Popen(
            bound_command(program.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.file,
            env=os.environ | dict(program.variables),
        )
        self._load = load
        self._loaded: Loaded | None = None

    def load(self) -> Loaded:
        """Wait until it is loaded and warm. Raises MeasurementError."""
        answer = self._ask(self._load)
        assert isinstance(answer, Loaded)
        self._loaded = answer
        return answer

    @property
    def loaded(self) -> Loaded:
        """What `load` returned."""
        assert self._loaded is not None, "it is loaded first"
        return self._loaded

    def generate(self, command: Generate) -> Generated:
        """Raises MeasurementError, also when a prompt got another number of tokens than it should."""
        answer = self._ask(command)
        assert isinstance(answer, Generated)
        counts = {len(ids) for ids in answer.token_ids}
        prompts = command.prompts or self._load.prompts
        if counts != {command.max_new_tokens} or len(answer.token_ids) != len(prompts):
            raise MeasurementError(
                f"{self._kind}: {len(answer.token_ids)} sequences of {sorted(counts)} tokens came back for "
                f"{len(prompts)} prompts and {command.max_new_tokens} tokens each"
            )
        return answer

    def score(self, command: Score) -> Scored:
        """Raises MeasurementError."""
        answer = self._ask(command)
        assert isinstance(answer, Scored)
        assert len(answer.logprobs) == len(command.num_scored_tokens), "one for each"
        return answer

    def pss_bytes(self) -> int:
        """Resident memory now, of it and its descendants; a page that several map counts once in all."""
        return tree_pss_bytes(self._process.pid)

    def close(self) -> None:
        """Let it end, and kill it if it does not."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()  # interrupted: do not wait for the end of a step
        self.close()

    def _ask(self, message: ToWorker) -> FromWorker:
        assert self._process.stdin is not None and self._process.stdout is not None
        timer = threading.Timer(_ANSWER_TIMEOUT, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(encode(message) + b"\n")
            self._process.stdin.flush()
            answer = decode_from_worker(self._process.stdout.readline())
        except (OSError, msgspec.DecodeError) as error:  # no answer, or half of one: it has ended
            status = self._process.wait()
            raise MeasurementError(
                f"{self._kind}: the worker ended with status {status}{self._log.last_lines()}"
            ) from error
        finally:
            timer.cancel()
        if isinstance(answer, Failed):
            raise MeasurementError(f"{self._kind}: {answer.reason}")
        return answer
