"""Batch evaluation over HTTP or in process: append-only truth, resumable, scored without inference.

Reading order: `cli` and `evaluate` (one command), `datasets` (rows in), `prompts`, `request_types`, `keys` and `plan`
(what will be asked), `transport` (asking), `asking` and `runner` (many at once), `answers` and `thinking` (from a reply
to a record), `run_directory` (what is kept), `scorers`, `scoring`, `summary`, `export` and `report` (what comes out);
`offline` (the engine in this process), `data_job` (the same for Python programs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evaluation.data_job import infer_data_job
    from evaluation.offline.engine import OfflineEngine

__all__ = ["OfflineEngine", "infer_data_job"]


def __getattr__(name: str) -> Any:
    """What programs use, imported when they do: the engine brings torch with it."""
    if name == "infer_data_job":
        from evaluation.data_job import infer_data_job

        return infer_data_job
    if name == "OfflineEngine":
        from evaluation.offline.engine import OfflineEngine

        return OfflineEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
