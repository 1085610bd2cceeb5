"""NVLM's tile tags: a text such as `<tile_1>` whose tokens precede each tile's image tokens.

Source: `_get_tile_tags` of examples/multimodal/model.py, `get_num_image_embeddings` and `_apply_tile_tagging` of
megatron-core; the method is NVLM's (arXiv 2409.11402).
"""

from __future__ import annotations

from image_preprocessing.errors import ImageSettingsError

MOST_TAGGED_TILES = 12  # besides the thumbnail; the tags of more tiles would not have equally many tokens


def tile_tag_texts(max_num_tiles: int, prompt_format: str) -> list[str]:
    """One tag per tile, then the last tile's, which is the thumbnail's. All have equally many tokens.

    Raises ImageSettingsError for more than 12 tiles.
    """
    if max_num_tiles > MOST_TAGGED_TILES:
        raise ImageSettingsError("max_num_tiles", f"is {max_num_tiles}: use_tile_tags allows {MOST_TAGGED_TILES}")
    nemotron = prompt_format.startswith("nemotron")
    two_digits = nemotron or max_num_tiles >= 10
    numbers = (f"{tile:02d}" if two_digits else str(tile) for tile in range(1, max_num_tiles + 1))
    thumbnail = "<tile_global" if prompt_format == "nvlm-yi-34b" else "<tile_global_thumbnail"
    # A digit where it makes the thumbnail's tag as long as those of two digits.
    padding = "0" if max_num_tiles >= 10 and not nemotron and prompt_format != "llama3p1" else ""
    return [*(f"<tile_{number}>" for number in numbers), f"{thumbnail}{padding}>"]


def tile_tag_rows(num_tiles: int, max_num_tiles: int) -> list[int]:
    """For each tile of an image its row in `tile_tag_texts`: 0, 1, ..., and the thumbnail's for the last tile.

    A single tile is the last one, and without a thumbnail the last tile takes its tag all the same, as in training.
    """
    return [*range(num_tiles - 1), max_num_tiles]


def tile_tag_length(max_num_tiles: int, prompt_format: str | None) -> int:
    """Tokens of one tag, as LLaVAModel counts them. Raises ImageSettingsError for a format it has no count for."""
    if prompt_format in ("llama3p1", "chatml", "qwen2p0", "qwen2p5"):
        length = 5
    elif (prompt_format or "").startswith("nemotron5"):
        length = 6
    else:
        reason = f"{prompt_format!r} has no tile tags in LLaVAModel: turn use_tile_tags off"
        raise ImageSettingsError("tokenizer_prompt_format", reason)
    digit_is_a_token = (prompt_format or "").startswith("qwen")
    return length + (1 if max_num_tiles > 10 and digit_is_a_token else 0)
