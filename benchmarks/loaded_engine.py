"""This project's engine in a worker process, from resolved arguments."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.messages import Load
from benchmarks.worker_process import WorkerProcess
from server.config import ResolvedDocument


def settings_of(document: ResolvedDocument) -> dict[str, Any]:
    """What a worker of any kind is told to use."""
    return {name: document.values[name] for name in ("dtype", "device", "threads")}


def load_engine(stack: ExitStack, document: ResolvedDocument, prompts: list[list[int]]) -> WorkerProcess:
    """Loaded and warm; it ends with the stack. Raises MeasurementError."""
    with tempfile.TemporaryDirectory(prefix="megaserve-bench-") as directory:
        file = Path(directory) / "document.json"
        file.write_bytes(document.to_json())
        load = Load(model=str(file), prompts=prompts, **settings_of(document))
        worker = stack.enter_context(WorkerProcess("engine", load))
        worker.load()
    return worker
