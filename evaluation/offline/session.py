"""One offline evaluation: every rank asks its own engine its share, and rank 0 puts the answers together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from evaluation.asking import AskingEnd, ask_all, make_client, questions_left
from evaluation.console import say
from evaluation.errors import ExitStatus, RunAbortedError, SetupError
from evaluation.evaluate import conclude
from evaluation.offline.engine import OfflineEngine
from evaluation.offline.shares import share_of
from evaluation.offline.timing import RankTime, session_timing
from evaluation.options import EvaluateOptions, OfflineOptions
from evaluation.plan import Question
from evaluation.preparation import Material, Prepared, prepare, read_material
from evaluation.run_directory.atomic import write_atomic
from evaluation.run_directory.layout import RunLayout
from evaluation.run_directory.log_reader import read_lines, read_logs
from evaluation.run_directory.log_writer import LogWriter
from evaluation.run_directory.open_run import OpenRun
from evaluation.shard import Shard


def evaluate_offline(options: EvaluateOptions, offline: OfflineOptions) -> ExitStatus:
    """The command on one rank, torchrun's or the only one. Raises EvaluationError."""
    started = time.monotonic()
    RunLayout(options.output).check_usable(new_run=options.new_run)
    material = read_material(options)
    engine = OfflineEngine(
        offline.load,
        *offline.engine_arguments,
        tensor_model_parallel_size=offline.tensor_model_parallel_size,
        rank_timeout=offline.barrier_timeout,
    )
    if options.shard.world_size > engine.ranks.world_size:
        raise SetupError("several processes were started, but not by torchrun, which offline mode needs to share a run")
    with engine:
        alone = replace(options, shard=Shard())  # shares are dealt out here, not by a hash
        return evaluate_in_process(alone, material, engine, started=started, pad=offline.pad_requests)


def evaluate_in_process(
    options: EvaluateOptions,
    material: Material,
    engine: OfflineEngine,
    *,
    started: float,
    pad: bool = False,
    before_asking: Callable[[Prepared], None] = lambda _: None,
) -> ExitStatus:
    """Ask an engine what has no answer yet, on all ranks, then write the results on rank 0.

    started: `time.monotonic()` at the beginning of the session. before_asking: is given the run, on rank 0. Raises
    EvaluationError.
    """
    ranks = engine.ranks
    ranks.begin_session()
    prepared = _prepared(options, material, engine, before_asking)
    left = json.loads(ranks.receive("questions"))
    if not left:
        return conclude(options, prepared, AskingEnd()) if ranks.is_first and prepared else ExitStatus.COMPLETE
    engine.load()
    ranks.barrier("engines loaded")
    if prepared is None:  # its leader asks; this rank follows until the engine ends
        return ExitStatus.COMPLETE
    by_key = {question.item.key: question for question in prepared.questions}
    questions = [replace(by_key[key], attempts=attempts) for key, attempts in left]
    share = share_of(questions, ranks.replica, ranks.num_replicas, pad=pad)
    return _Session(options, prepared, engine, share, started).run()


def _prepared(
    options: EvaluateOptions, material: Material, engine: OfflineEngine, before_asking: Callable[[Prepared], None]
) -> Prepared | None:
    """The run on every leader. Rank 0 begins it and says what is left to ask, so that all ranks mean the same."""
    ranks = engine.ranks
    prepared = None
    if ranks.is_first:
        say(f"Model      {engine.model}")
        prepared = prepare(options, material, engine.model)
        before_asking(prepared)
        left = questions_left(options, prepared.run, prepared.questions)
        ranks.publish("questions", json.dumps([[one.item.key, one.attempts] for one in left]))
    ranks.receive("questions")
    if ranks.is_leader and prepared is None:
        prepared = prepare(replace(options, new_run=False), material, engine.model)
    return prepared


class _Session:
    """What a leader does once there is something to ask."""

    def __init__(
        self,
        options: EvaluateOptions,
        prepared: Prepared,
        engine: OfflineEngine,
        share: Sequence[Question],
        started: float,
    ) -> None:
        self._options = options
        self._prepared = prepared
        self._engine = engine
        self._ranks = engine.ranks
        self._share = share
        self._started = started

    def run(self) -> ExitStatus:
        began = time.monotonic()
        end, log = self._ask()
        inference_seconds = time.monotonic() - began
        if end.interrupted:
            self._ranks.give_up("interrupted")
        if end == AskingEnd():
            try:
                self._meet(inference_seconds, log)
            except RunAbortedError as error:
                end = AskingEnd(aborted=error)
        if self._ranks.is_first:
            return conclude(self._options, self._prepared, end)
        if end.aborted:
            raise end.aborted
        return ExitStatus.INCOMPLETE if end.interrupted else ExitStatus.COMPLETE

    def _ask(self) -> tuple[AskingEnd, str]:
        """How it ended, and after a good end this session's part of the log."""
        writer = LogWriter(self._prepared.run.layout.log)
        client = make_client(self._options, self._engine.wire, self._engine.gate)
        try:
            with writer as log:
                end = self._engine.run(ask_all(self._options, self._share, client, self._engine.model.name, log))
        except RunAbortedError as error:
            end = AskingEnd(aborted=error)
        return end, writer.path.read_text() if end == AskingEnd() else ""

    def _meet(self, inference_seconds: float, log: str) -> None:
        """Barriers, then every rank's answers and times on rank 0. Raises RanksError."""
        ranks = self._ranks
        time_of_rank = RankTime(
            rank=ranks.rank,
            questions=sum(not question.is_padding for question in self._share),
            inference_seconds=inference_seconds,
            barrier_wait_seconds=ranks.barrier(self._options.request_type.value, ranks.leaders),
        )
        report = json.dumps(asdict(time_of_rank))
        ranks.barrier("after inference", ranks.leaders)
        logs, reports = ranks.gather("answers", log), ranks.gather("times", report)
        if not ranks.is_first:
            return
        keep_what_is_missing(self._prepared.run, logs)
        times = [RankTime(**json.loads(one)) for one in reports]
        timing = session_timing(times, time.monotonic() - self._started)
        write_atomic(self._prepared.run.layout.offline, json.dumps(timing, indent=1).encode() + b"\n")


def keep_what_is_missing(run: OpenRun, logs: Sequence[str]) -> None:
    """Append what other ranks logged where this rank cannot see it: on a machine whose run directory is another."""
    present = {(record.key, record.finished_at) for record in read_logs(run.layout.log).records}
    lines = [log.encode().splitlines(keepends=True) for log in logs]
    records = [record for part in lines for record in read_lines(part, "gathered").records]
    missing = [record for record in records if (record.key, record.finished_at) not in present]
    if missing:
        with LogWriter(run.layout.log) as writer:
            for record in missing:
                writer.append(record)
