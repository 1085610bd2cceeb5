"""Token ids of the texts that precede each tile's image tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from image_preprocessing.settings import ImageSettings
from image_preprocessing.tile_tags import tile_tag_texts
from model_providers.errors import CheckpointError, UnsupportedModelError

_TOKENIZER_FILE = "tokenizer.json"


def tile_tag_ids(values: Mapping[str, Any], images: ImageSettings) -> list[list[int]] | None:
    """For each of `tile_tag_texts` its tokens, None for a model without tile tags.

    Raises CheckpointError for a tokenizer that cannot be read, UnsupportedModelError for one that makes tags of another
    length than the model was trained with.
    """
    if not images.tile_tag_len:
        return None
    if values["tokenizer_model"] is None:
        raise UnsupportedModelError("tokenizer_model", "is needed to make the tokens of tile tags (use_tile_tags)")
    texts = tile_tag_texts(images.max_num_tiles, values["tokenizer_prompt_format"])
    tokenizer = _tokenizer(Path(values["tokenizer_model"]))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    for text, tokens in zip(texts, ids, strict=True):
        if len(tokens) != images.tile_tag_len:
            raise UnsupportedModelError(
                "use_tile_tags", f"{text} has {len(tokens)} tokens here and {images.tile_tag_len} in training"
            )
    return ids


def _tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    file = path / _TOKENIZER_FILE if path.is_dir() else path
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the tokenizers package raises nothing more precise
        raise CheckpointError(file, f"is not a tokenizer: {error}") from error
