"""`python -m benchmarks.random_llama DIR`: a random Llama of any size in both formats, DIR/hf and DIR/megatron.

For machines without a model at hand: speed does not depend on what the weights say.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.vlm_model import TOKENIZER
from model_providers.checkpoint.import_command import import_hf

_HEAD_DIM = 64
_MAX_POSITIONS = 2048


def make_llama(directory: Path, *, num_layers: int, hidden_size: int) -> None:
    """A quarter as many KV heads as query heads, at least one. hidden_size: a multiple of 64."""
    vocabulary = json.loads((TOKENIZER / "tokenizer.json").read_text())["model"]["vocab"]
    heads = hidden_size // _HEAD_DIM
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 8 // 3 // _HEAD_DIM * _HEAD_DIM,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        vocab_size=len(vocabulary),
        max_position_embeddings=_MAX_POSITIONS,
        initializer_range=0.1,  # the usual 0.02 leaves tokens so nearly equal that rounding decides
    )
    model: Any = LlamaForCausalLM(config)
    model.save_pretrained(directory / "hf")
    shutil.copytree(TOKENIZER, directory / "hf", dirs_exist_ok=True)
    import_hf(directory / "hf", directory / "megatron")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.random_llama", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--num-layers", type=int, required=True)
    parser.add_argument("--hidden-size", type=int, required=True)
    arguments = parser.parse_args()
    if arguments.hidden_size % _HEAD_DIM:
        parser.error(f"--hidden-size must be a multiple of {_HEAD_DIM}")
    make_llama(arguments.directory, num_layers=arguments.num_layers, hidden_size=arguments.hidden_size)


if __name__ == "__main__":
    main()
