"""The token that stands for an image in a prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_USUAL = "<image>"


def image_token_flags(directory: Path, config: Any) -> list[str]:
    """`special_tokens`: the text that the tokenizer has for the configuration's image token.

    A damaged tokenizer is reported where its size is counted.
    """
    path = directory / "tokenizer.json"
    added = json.loads(path.read_text()).get("added_tokens", []) if path.is_file() else []
    text = next((token["content"] for token in added if token["id"] == config.image_token_id), _USUAL)
    return ["--tokenizer-special-tokens", text]  # of Megatron's parser, whose destination is special_tokens
