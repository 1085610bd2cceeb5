"""A Hugging Face directory to Megatron arguments and tensors, strictly: nothing is left over and nothing is made up."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from model_providers.checkpoint.hf.image_processor import image_processor_flags
from model_providers.checkpoint.hf.image_token import image_token_flags
from model_providers.checkpoint.hf.registry import family_of
from model_providers.checkpoint.hf.source import HfSource, read_config
from model_providers.checkpoint.training_args import training_args
from model_providers.errors import CheckpointError

DtypeChoice = Literal["auto", "fp32", "bf16"]
OnProgress = Callable[[int, int], None]

_FLAGS_OF_DTYPE: dict[torch.dtype, list[str]] = {
    torch.float32: [],
    torch.bfloat16: ["--bf16"],
    torch.float16: ["--fp16"],
}


class Converted(NamedTuple):
    """state_dict: whole tensors by Megatron's local-spec names. args: what a training run would have stored."""

    state_dict: dict[str, torch.Tensor]
    args: Namespace


def convert(directory: Path, dtype: DtypeChoice = "auto", on_progress: OnProgress | None = None) -> Converted:
    """Read the Hugging Face model in `directory`; `auto` keeps the number format of its weights.

    on_progress: called with the number of tensors read so far, and of all.
    Raises CheckpointError for damaged, missing or superfluous tensors, UnsupportedModelError for what Megatron lacks.
    """
    config = read_config(directory)
    family = family_of(config)
    flags = [*family.megatron_flags(config), *_vocabulary_flags(directory, int(config.get_text_config().vocab_size))]
    if family.multimodal:
        flags += [*image_processor_flags(directory, config), *image_token_flags(directory, config)]
    with HfSource(directory, config) as source:
        target = _target_dtype(source, dtype)
        args = training_args([*flags, *_FLAGS_OF_DTYPE[target]], multimodal=family.multimodal)
        state_dict = {}
        for name, tensor in family.tensors(source):
            state_dict[name] = tensor.to(target)
            if on_progress is not None:
                on_progress(source.num_taken, source.num_tensors)
        left_over = [name for name in source.unused() if not family.is_ignorable(name, config)]
    if left_over:
        raise CheckpointError(directory, f"tensors that a {config.model_type} does not have: {left_over}")
    return Converted(state_dict, args)


def _target_dtype(source: HfSource, choice: DtypeChoice) -> torch.dtype:
    if choice != "auto":
        return {"fp32": torch.float32, "bf16": torch.bfloat16}[choice]
    dtypes = source.float_dtypes()
    only = dtypes.pop() if len(dtypes) == 1 else torch.float32  # mixed: the one that holds them all
    return only if only in _FLAGS_OF_DTYPE else torch.float32  # Megatron has no float64


def _vocabulary_flags(directory: Path, rows: int) -> list[str]:
    """rows: of the embedding, padding included, kept exactly as they are.

    The tokenizer's files are found beside the weights, so no path is recorded: a checkpoint can be moved.
    """
    flags = ["--tokenizer-type", "HuggingFaceTokenizer", "--make-vocab-size-divisible-by", "1"]
    return [*flags, "--padded-vocab-size", str(rows), "--vocab-size", str(min(rows, _num_tokens(directory) or rows))]


def _num_tokens(directory: Path) -> int | None:
    """One more than the largest token id, None without a tokenizer.json."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        return None
    from tokenizers import Tokenizer

    try:
        return max(Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=True).values()) + 1
    except Exception as error:  # the tokenizers package raises nothing more precise
        raise CheckpointError(path, f"is not a tokenizer: {error}") from error
