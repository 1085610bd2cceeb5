"""vLLM on a CPU, in this process; it batches by itself."""

from __future__ import annotations

import os

from vllm import LLM, SamplingParams

from benchmarks.peers.worker_protocol import Engine, LoadRequest, run_worker

_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
_MAX_MODEL_LEN = 2048


class VllmEngine:
    """With compiled graphs, as it serves by default, and without its prefix cache."""

    def __init__(self, request: LoadRequest) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # read when an LLM is made: its engine runs in this process
        self._llm = LLM(
            str(request.model),
            dtype=_DTYPES[request.dtype],
            max_model_len=_MAX_MODEL_LEN,
            max_num_seqs=max(32, request.max_requests),
            enable_prefix_caching=False,
            disable_log_stats=True,
        )

    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=max_new_tokens, ignore_eos=True)
        outputs = self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


def load(request: LoadRequest) -> Engine:
    return VllmEngine(request)


if __name__ == "__main__":
    run_worker(load)
