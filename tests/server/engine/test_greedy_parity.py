"""Batched, paged, chunked, preempted and sharded: the tokens are still Hugging Face's, one prompt at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


# 20 blocks of 16 tokens hold a fraction of what the workload wants at once; 48 tokens a step split its long prompts.
@pytest.mark.parametrize(("ranks", "kv_cache_gb"), [(1, "0.0138"), (3, "0.0046")])
def test_staggered_requests_get_hugging_face_s_greedy_tokens(
    run_engine: Any,
    smollm2_checkpoint: Path,
    mixed_workload: Any,
    hugging_face_greedy: Any,
    ranks: int,
    kv_cache_gb: str,
) -> None:
    flags = ("--dtype", "fp32", "--kv-cache-gb", kv_cache_gb, "--max-batched-tokens", "48")
    result = run_engine(smollm2_checkpoint, mixed_workload, *flags, ranks=ranks)
    for item in mixed_workload:
        tokens = result["tokens"][item["id"]]
        assert len(tokens) == item["max_new_tokens"]
        assert hugging_face_greedy(item["prompt"], tokens) == tokens
    stats = result["stats"]
    assert stats["total_preemptions"] > 0
    assert stats["total_cached_tokens"] > 0
    assert stats["total_split_prefills"] > 0
    assert stats["num_free_blocks"] == stats["num_blocks"]
