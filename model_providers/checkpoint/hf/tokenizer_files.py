"""The tokenizer of a Hugging Face directory, put where a server finds it: `tokenizer/` in the checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

from model_providers.errors import CheckpointError

TOKENIZER_DIRECTORY = "tokenizer"
# config.json goes along because AutoTokenizer asks it for the model type; generation_config.json knows the stop tokens.
_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "generation_config.json",
    "config.json",
)
_SLOW_ONLY = ("vocab.json", "tokenizer.model")


def copy_tokenizer(source: Path, checkpoint: Path) -> bool:
    """Fill `checkpoint/tokenizer`; say whether there is a tokenizer in it.

    Old repositories have only a vocabulary: a tokenizer.json is made from it. Raises CheckpointError when that fails.
    """
    destination = checkpoint / TOKENIZER_DIRECTORY
    destination.mkdir()
    for name in _COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, destination / name)
    if (destination / "tokenizer.json").is_file():
        return True
    if not any((source / name).is_file() for name in _SLOW_ONLY):
        return False
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(source, trust_remote_code=False, local_files_only=True).save_pretrained(
            destination
        )
    except (ValueError, OSError, ImportError) as error:  # ImportError: sentencepiece, which only tokenizer.model needs
        raise CheckpointError(source, f"has no tokenizer.json, and none can be made: {error}") from error
    return (destination / "tokenizer.json").is_file()
