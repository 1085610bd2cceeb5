"""OpenVINO GenAI's continuous batching, in this process."""

from __future__ import annotations

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.worker_protocol import Engine, LoadRequest, PeerError, run_worker

_PRECISIONS = {"fp32": "f32", "bf16": "bf16"}
_KV_CACHE_GB = 2
_MAX_BATCHED_TOKENS = 512


class OpenVinoEngine:
    """The KV cache has the precision of the computation: 8 bits, the default, would not give the same tokens."""

    def __init__(self, request: LoadRequest) -> None:
        if request.dtype == "bf16" and "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise PeerError("OpenVINO computes in bf16 only on processors that have instructions for it; this has none")
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = _KV_CACHE_GB
        scheduler.max_num_seqs = max(32, request.max_requests)
        scheduler.max_num_batched_tokens = _MAX_BATCHED_TOKENS
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        precision = _PRECISIONS[request.dtype]
        properties = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "INFERENCE_NUM_THREADS": str(request.threads),
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(request.model), scheduler, "CPU", properties)

    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = max_new_tokens
        config.min_new_tokens = max_new_tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        tensors = [openvino.Tensor(np.array([ids], dtype=np.int64)) for ids in prompts]
        results = self._pipeline.generate(tensors, [config] * len(prompts))
        return [list(result.m_generation_ids[0]) for result in results]


def load(request: LoadRequest) -> Engine:
    return OpenVinoEngine(request)


if __name__ == "__main__":
    run_worker(load)
