"""Every family, imported and served, gives the logits of Hugging Face's implementation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from model_providers.checkpoint.hf.convert import convert
from model_providers.checkpoint.import_command import import_hf
from model_providers.checkpoint.peek import peek
from model_providers.checkpoint.save import save_legacy_torch

# 131 rows are divisible by nothing; 72 = 3 heads of 24.
_COMMON = {"num_hidden_layers": 2, "vocab_size": 131, "max_position_embeddings": 128}
_SHAPE = {"hidden_size": 64, "intermediate_size": 100, "num_attention_heads": 4, "num_key_value_heads": 2, **_COMMON}
_ONE_KV_HEAD = {"hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 1}
_ROPE = {"rope_type": "default", "rope_theta": 1e6}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_FAMILIES = {
    "llama tied": LlamaConfig(**_SHAPE, tie_word_embeddings=True, rms_norm_eps=3e-5),
    "llama untied, head size of its own": LlamaConfig(**_SHAPE, head_dim=24),
    "llama 3 scaled rope": LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3_ROPE, tie_word_embeddings=True),
    "llama one KV head": LlamaConfig(**{**_SHAPE, **_ONE_KV_HEAD}),
    "mistral": MistralConfig(**{**_SHAPE, "num_key_value_heads": 4}, sliding_window=None),
    "qwen2": Qwen2Config(**_SHAPE, tie_word_embeddings=True, rope_parameters=_ROPE),
    "qwen3": Qwen3Config(**_SHAPE, head_dim=24),
    "gpt2": GPT2Config(n_layer=2, n_embd=60, n_head=3, n_positions=96, vocab_size=131),
    "gpt2 untied, exact gelu": GPT2Config(
        n_layer=2, n_embd=64, n_head=4, n_inner=100, n_positions=96, vocab_size=131,
        activation_function="gelu", tie_word_embeddings=False, layer_norm_epsilon=3e-5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("config", _FAMILIES.values(), ids=_FAMILIES.keys())
def test_logits_equal_hugging_face(
    config: Any, write_hf_model: Callable[..., Any], serving_logits: Callable[[Path, list[int]], Tensor], tmp_path: Path
) -> None:
    model = write_hf_model(config)
    import_hf(tmp_path / "hf", tmp_path / "megatron")
    token_ids = torch.randint(0, 131, (80,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(token_ids[None]).logits[0]
    actual = serving_logits(tmp_path / "megatron", token_ids.tolist())
    assert expected.std() > 0.5  # or a tolerance of 1e-4 would say little
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


def test_legacy_shards_of_two_ranks_give_the_same_logits(
    write_hf_model: Callable[..., Any], serving_logits: Callable[[Path, list[int]], Tensor], tmp_path: Path
) -> None:
    model = write_hf_model(LlamaConfig(**{**_SHAPE, "vocab_size": 132}))
    state_dict, args = convert(tmp_path / "hf")
    save_legacy_torch(tmp_path / "legacy", state_dict=state_dict, args=args, tensor_model_parallel_size=2)
    token_ids = list(range(100))
    with torch.no_grad():
        expected = model(torch.tensor([token_ids])).logits[0]
    torch.testing.assert_close(serving_logits(tmp_path / "legacy", token_ids), expected, rtol=0, atol=1e-4)


def test_sharded_files_give_the_same_tensors(write_hf_model: Callable[..., Any], tmp_path: Path) -> None:
    model = write_hf_model(_FAMILIES["llama tied"])
    whole = convert(tmp_path / "hf").state_dict
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    sharded = convert(tmp_path / "shards").state_dict
    assert sharded.keys() == whole.keys()
    assert all(torch.equal(sharded[name], whole[name]) for name in whole)


@pytest.mark.parametrize(
    ("stored", "choice", "expected"),
    [
        (torch.bfloat16, "auto", torch.bfloat16),
        (torch.float16, "auto", torch.float16),
        (torch.bfloat16, "fp32", torch.float32),
        (torch.float32, "bf16", torch.bfloat16),
    ],
)
def test_dtype(
    stored: torch.dtype, choice: Any, expected: torch.dtype, write_hf_model: Callable[..., Any], tmp_path: Path
) -> None:
    write_hf_model(_FAMILIES["qwen2"]).to(stored).save_pretrained(tmp_path / "hf")
    state_dict, args = convert(tmp_path / "hf", choice)
    assert {tensor.dtype for tensor in state_dict.values()} == {expected}
    assert args.params_dtype == expected
    assert (args.bf16, args.fp16) == (expected == torch.bfloat16, expected == torch.float16)


def test_smollm2(
    smollm2_checkpoint: Path, smollm2_hf: Any, serving_logits: Callable[[Path, list[int]], Tensor]
) -> None:
    token_ids = torch.randint(0, 49152, (64,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = smollm2_hf(token_ids[None]).logits[0]
    torch.testing.assert_close(serving_logits(smollm2_checkpoint, token_ids.tolist()), expected, rtol=0, atol=1e-4)
    assert peek(smollm2_checkpoint).vocabulary_rows == 49152
