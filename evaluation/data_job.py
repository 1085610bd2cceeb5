"""`infer_data_job`: VLMEvalKit's function of that name, with a run directory behind it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluation.datasets.frame import PromptDataset, dataset_of_frame
from evaluation.earlier_results import import_results
from evaluation.errors import RunAbortedError, SetupError
from evaluation.evaluate import evaluate_over_http
from evaluation.export.formats import ExportFormat, export_table
from evaluation.export.table import in_file_name, result_table
from evaluation.finish import final_records
from evaluation.keys import GenerationParameters
from evaluation.options import EvaluateOptions
from evaluation.plan import AskingSettings
from evaluation.preparation import Material, Prepared
from evaluation.run_directory.layout import RunLayout
from evaluation.run_directory.log_reader import read_logs
from evaluation.run_directory.open_run import open_existing
from evaluation.scorers import ScorerName
from evaluation.shard import Shard
from evaluation.thinking import ThinkingSplit, split_think_of_environment

if TYPE_CHECKING:
    from evaluation.offline.engine import OfflineEngine

MAX_NEW_TOKENS = 2048  # VLMEvalKit's default for models behind an API
ENGINE_CONCURRENCY = 64
RANKS_TIMEOUT_SECONDS = 1800.0
_FORMATS = (ExportFormat.XLSX, ExportFormat.TSV, ExportFormat.JSON)


def infer_data_job[Model: str | Path | "OfflineEngine"](
    model: Model,
    work_dir: str | Path,
    model_name: str,
    dataset: PromptDataset,
    verbose: bool = False,
    api_nproc: int = 4,
    ignore_failed: bool = False,
    use_vllm: bool = False,
) -> Model:
    """Ask a model every row of a dataset, write `{work_dir}/{model_name}_{dataset_name}.{xlsx|tsv|json}` -> the model.

    model: a server's URL, a checkpoint's path, or an `evaluation.OfflineEngine` that was entered. dataset: see
    `datasets.frame.PromptDataset`. verbose: print every outcome. api_nproc: questions under way at a server; an engine
    in this process batches by itself. ignore_failed: do not ask again what failed earlier.

    PRED_FORMAT names the file's format (xlsx unless it is set), SPLIT_THINK splits answers as VLMEvalKit does. A result
    file that is there already is read as earlier answers; answers themselves go to the run directory
    `{work_dir}/{model_name}_{dataset_name}.run` as they come, so a call after a crash goes on. A row that failed has an
    empty prediction. Under torchrun every rank calls it alike, and rank 0 writes the file.

    Raises SetupError for what cannot begin, `use_vllm` among it, and RunAbortedError when rows are left without an
    outcome.
    """
    if use_vllm:
        raise SetupError("use_vllm=True: this engine batches by itself and runs no vLLM; leave it out")
    started = time.monotonic()
    name = f"{in_file_name(model_name)}_{in_file_name(dataset.dataset_name)}"
    file = Path(work_dir) / f"{name}.{_format().value}"
    is_url = isinstance(model, str) and model.startswith(("http://", "https://"))
    options = EvaluateOptions(
        server=str(model).rstrip("/") if is_url else "",
        data=dataset.dataset_name,
        output=Path(work_dir) / f"{name}.run",
        parameters=GenerationParameters(max_new_tokens=MAX_NEW_TOKENS),
        concurrency=api_nproc if is_url else max(api_nproc, ENGINE_CONCURRENCY),
        retry_failed=False if ignore_failed else None,
        thinking=ThinkingSplit("vlmevalkit") if split_think_of_environment() else ThinkingSplit(),
        scorer=ScorerName.NONE,
        report=False,
        verbose=verbose,
        shard=Shard.of_environment(os.environ) if is_url else Shard(),
    )
    RunLayout(options.output).check_usable()
    material = Material(dataset_of_frame(dataset), AskingSettings(parameters=options.parameters))
    if is_url:
        is_first = options.shard.rank == 0
        options = _waiting_for_ranks(options)
        evaluate_over_http(options, material, _take_over(file, options.shard.holds))
    else:
        is_first = _ask_in_process(options, material, model, started, _take_over(file))
    if is_first:
        _write_result(options.output, file)
    return model


def _waiting_for_ranks(options: EvaluateOptions) -> EvaluateOptions:
    waits = options.shard.rank == 0 and options.shard.world_size > 1
    return replace(options, wait_for_ranks=RANKS_TIMEOUT_SECONDS) if waits else options


def _ask_in_process(
    options: EvaluateOptions,
    material: Material,
    model: Any,
    started: float,
    before_asking: Callable[[Prepared], None],
) -> bool:
    """Whether this is rank 0."""
    from evaluation.offline.engine import OfflineEngine  # imports torch and the server
    from evaluation.offline.session import evaluate_in_process

    with ExitStack() as stack:
        engine = model if isinstance(model, OfflineEngine) else stack.enter_context(OfflineEngine(model))
        evaluate_in_process(options, material, engine, started=started, before_asking=before_asking)
        return engine.ranks.is_first


def _take_over(file: Path, holds: Callable[[str], bool] = lambda _: True) -> Callable[[Prepared], None]:
    def take_over(prepared: Prepared) -> None:
        for one in dict.fromkeys((file, file.with_suffix(".tsv"))):  # where a workbook could not hold the answers
            import_results(prepared.run, one, holds)

    return take_over


def _write_result(run_directory: Path, file: Path) -> None:
    run = open_existing(RunLayout(run_directory))
    records = final_records(run, read_logs(run.layout.log)).by_key
    if missing := [item for item in run.items if item.key not in records]:
        raise RunAbortedError(
            f"{len(missing)} of {len(run.items)} rows have no outcome yet; the same call goes on with them"
        )
    written = export_table(file, ExportFormat(file.suffix.removeprefix(".")), result_table(run.items, records))
    if written != file:
        file.unlink(missing_ok=True)  # an earlier one that the answers do not fit into any more


def _format() -> ExportFormat:
    name = os.environ.get("PRED_FORMAT") or ExportFormat.XLSX.value
    if name not in _FORMATS:
        raise SetupError(f"PRED_FORMAT={name}: a result file is {', '.join(_FORMATS)}")
    return ExportFormat(name)
