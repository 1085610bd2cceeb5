"""What the command line of an evaluation says, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from evaluation.export.formats import ExportFormat
from evaluation.keys import GenerationParameters
from evaluation.prompts import PromptFamily
from evaluation.request_types.names import ContinuationName, RequestType
from evaluation.scorers import ScorerName
from evaluation.shard import Shard
from evaluation.thinking import ThinkingSplit


@dataclass(frozen=True, kw_only=True)
class FailureLimit:
    """More failed rows than `count`, or than `fraction` of all, are too many."""

    count: int | None = None
    fraction: float | None = None

    def is_passed(self, failed: int, items: int) -> bool:
        if self.count is not None:
            return failed > self.count
        return self.fraction is not None and failed > self.fraction * items


@dataclass(frozen=True, kw_only=True)
class RowChoice:
    """Which rows to ask now, of those that have no answer yet. ids: None for all. where: pairs of `status` or a column
    and its value, all of which must hold."""

    ids: tuple[str, ...] | None = None
    where: tuple[tuple[str, str], ...] = ()

    @property
    def is_explicit(self) -> bool:
        """Somebody named these rows, so that failed ones among them are asked again whatever their failure was."""
        return self.ids is not None or bool(self.where)


@dataclass(frozen=True, kw_only=True)
class OfflineOptions:
    """load: a checkpoint. engine_arguments: further ones, as `megaserve serve` takes them. pad_requests: see
    `offline.shares`. barrier_timeout: seconds to wait for another rank."""

    load: str
    tensor_model_parallel_size: int = 1
    engine_arguments: tuple[str, ...] = ()
    pad_requests: bool = False
    barrier_timeout: float = 1800.0


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """server: its URL, "" in offline mode. data: a file, a directory, or `easy-vqa:SPLIT`. timeout: seconds for one
    request. server_wait: seconds to wait for a server that loads, restarts or puts off. retry_failed: see
    `plan.remaining_questions`. max_image_mb: of images under way, in units of 2**20 bytes. wait_for_ranks: seconds
    without a new answer to wait for the other ranks. verbose: print every outcome."""

    server: str
    data: str
    output: Path
    parameters: GenerationParameters
    request_type: RequestType = RequestType.GENERATE_UNTIL
    continuation: ContinuationName = ContinuationName.TEXT
    next_turn: str | None = None
    thinking: ThinkingSplit = field(default_factory=ThinkingSplit)
    api_key: str | None = field(default=None, repr=False)
    concurrency: int = 64
    max_image_mb: float = 256.0
    limit: int | None = None
    rows: RowChoice = field(default_factory=RowChoice)
    scorer: ScorerName = ScorerName.AUTO
    prompt: PromptFamily = PromptFamily.AUTO
    prompt_template: Path | None = None
    timeout: float = 600.0
    server_wait: float = 300.0
    max_attempts: int = 4
    retry_failed: bool | None = None
    exports: tuple[ExportFormat, ...] = ()
    report: bool = True
    fail_on_error: FailureLimit = field(default_factory=FailureLimit)
    new_run: bool = False
    shard: Shard = field(default_factory=Shard)
    wait_for_ranks: float = 0.0
    verbose: bool = False
    offline: OfflineOptions | None = None
