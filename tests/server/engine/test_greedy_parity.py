"""Batched, paged, chunked, preempted and sharded: the tokens are still Hugging Face's, one prompt at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from model_providers.checkpoint.hf.convert import convert
from model_providers.checkpoint.import_command import import_hf
from model_providers.checkpoint.save import save_legacy_torch


# 20 blocks of 16 tokens hold a fraction of what the workload wants at once; 48 tokens a step split its long prompts.
@pytest.mark.parametrize(
    ("ranks", "kv_cache_gb", "kernels"),
    [(1, "0.0138", "auto"), (3, "0.0046", "off"), pytest.param(3, "0.0046", "auto", marks=pytest.mark.proof)],
)
def test_staggered_requests_get_hugging_face_s_greedy_tokens(
    run_engine: Any,
    smollm2_checkpoint: Path,
    mixed_workload: Any,
    smollm2_hf: Any,
    greedy_choices: Any,
    ranks: int,
    kv_cache_gb: str,
    kernels: str,
) -> None:
    flags = ("--dtype", "fp32", "--kv-cache-gb", kv_cache_gb, "--max-batched-tokens", "48", "--kernels", kernels)
    result = run_engine(smollm2_checkpoint, mixed_workload, *flags, ranks=ranks)
    for item in mixed_workload:
        tokens = result["tokens"][item["id"]]
        assert len(tokens) == item["max_new_tokens"]
        assert greedy_choices(smollm2_hf, item["prompt"], tokens) == tokens
    stats = result["stats"]
    assert stats["total_preemptions"] > 0
    assert stats["total_cached_tokens"] > 0
    assert stats["total_split_prefills"] > 0
    assert stats["num_free_blocks"] == stats["num_blocks"]


# The tokenizer of `padded_model` knows 131 ids; the checkpoint has one row more, as training's padding would add.
_VOCABULARY = 131


@pytest.mark.parametrize(
    ("layout", "ranks", "kernels"), [("torch_dist", 2, "auto"), ("legacy of 4 ranks", 2, "portable")]
)
def test_another_tensor_parallel_size_gives_the_same_tokens_and_no_padding(
    run_engine: Any,
    greedy_choices: Any,
    padded_model: tuple[PreTrainedModel, Path],
    tmp_path: Path,
    layout: str,
    ranks: int,
    kernels: str,
) -> None:
    model, source = padded_model
    checkpoint = tmp_path / "megatron"
    if layout == "torch_dist":
        import_hf(source, checkpoint)
    else:
        state_dict, args = convert(source)
        save_legacy_torch(checkpoint, state_dict=state_dict, args=args, tensor_model_parallel_size=4)
        (checkpoint / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    generator = torch.Generator().manual_seed(6)
    lengths = (1, 2, 15, 16, 17, 40)
    workload = [
        {
            "id": str(index),
            "prompt": torch.randint(0, _VOCABULARY, (length,), generator=generator).tolist(),
            "max_new_tokens": 20,
            "arrival_step": index,
        }
        for index, length in enumerate(lengths)
    ]
    flags = ("--dtype", "fp32", "--kv-cache-gb", "0.01", "--kernels", kernels)
    result = run_engine(checkpoint, workload, *flags, ranks=ranks)
    padding_would_win = False
    for item in workload:
        tokens = result["tokens"][item["id"]]
        assert tokens == greedy_choices(model, item["prompt"], tokens, _VOCABULARY)
        padding_would_win |= _VOCABULARY in greedy_choices(model, item["prompt"], tokens)
    assert padding_would_win
