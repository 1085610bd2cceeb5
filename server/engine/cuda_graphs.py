"""Recording CUDA graphs: the host starts the kernels of a whole step with one call instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from server.errors import ConfigurationError

Replay = Callable[[], Tensor]
"""Does again what was recorded, reading what its inputs hold by now -> the same tensor each time, newly written."""

# Before a graph is recorded, libraries must have allocated their workspaces and NCCL its connections.
_WARM_UPS = 2


class GraphRecorder(Protocol):
    def record(self, function: Callable[[], Tensor]) -> Replay:
        """function: the same kernels on the same memory each time it is called."""
        ...


class CudaGraphRecorder:
    """Graphs that share one pool of memory for what they compute on the way.

    So they must not run at the same time, and a graph's result must be read before another one runs: both hold when
    everything is put on one stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, function: Callable[[], Tensor]) -> Replay:
        """See `GraphRecorder.record`. Raises ConfigurationError."""
        graph = torch.cuda.CUDAGraph()
        try:
            self._warm_up(function)
            # NCCL's watchdog thread may call CUDA at any time; only what this thread does must be fit for a graph.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                out = function()
        except RuntimeError as error:  # of CUDA and its libraries: they have no type of their own
            raise ConfigurationError(
                f"no CUDA graph can be recorded here; --no-cuda-graphs does without: {error}"
            ) from error

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay

    def _warm_up(self, function: Callable[[], Tensor]) -> None:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                function()
        current.wait_stream(self._stream)


def collectives_can_be_recorded() -> bool:
    """Those of NCCL can; gloo's run on the host. The default process group must exist."""
    return dist.get_world_size() == 1 or "cuda:nccl" in dist.get_backend_config()
