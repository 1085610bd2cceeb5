"""torch's profiler on one rank, started and stopped between steps, written as a Chrome trace."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

logger = logging.getLogger(__name__)


class RankProfiler:
    """directory: where traces go, None when --profile-dir was not given. A trace opens in Perfetto or chrome://tracing."""

    def __init__(self, directory: str | None, rank: int) -> None:
        self._directory = directory
        self._rank = rank
        self._running: profile | None = None

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def start(self) -> None:
        """Record what torch does from now on."""
        assert self._running is None, "the profiler is running"
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._running = profile(activities=activities)
        self._running.start()

    def stop(self) -> str:
        """Write the trace -> why that failed, or nothing. A full disk must not end the rank."""
        running, self._running = self._running, None
        assert running is not None, "the profiler is not running"
        assert self._directory is not None, "the HTTP process starts no profile without a directory"
        running.stop()
        seconds, milliseconds = divmod(time.time_ns() // 1_000_000, 1000)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(seconds))
        file = Path(self._directory) / f"{stamp}-{milliseconds:03}-rank{self._rank}.trace.json"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            running.export_chrome_trace(str(file))
        except (OSError, RuntimeError) as error:
            logger.error("the profile cannot be written to %s: %s", file, error)
            return f"{file} cannot be written: {error}"
        logger.info("profile written to %s", file)
        return ""
