"""`python -m benchmarks.vlm_model DIR`: one random LLaVA with the demo checkpoint's shape, for both implementations.

Hugging Face's layout with pixel shuffle is InternVL's, so that is what is made (DIR/hf) and imported (DIR/megatron):
both sides hold the same weights and must give the same tokens. Sizes are those of examples/train_demo_vlm.py.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, InternVLConfig, InternVLVisionConfig, LlamaConfig

from model_providers.checkpoint.import_command import import_hf
from server.process_lifetime import die_with_parent

TOKENIZER = Path(__file__).parents[1] / "examples" / "demo_vlm" / "tokenizer"
_IMAGE = 64
_PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor", "do_resize": True, "do_center_crop": False, "do_normalize": True,
    "size": {"height": _IMAGE, "width": _IMAGE}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3,
}  # fmt: skip


def make_pair(directory: Path, tokenizer: Path = TOKENIZER) -> None:
    """Writes directory/hf and directory/megatron. tokenizer: a directory whose vocabulary has an <image>."""
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    torch.manual_seed(0)
    model: Any = AutoModelForImageTextToText.from_config(_config(len(vocabulary), vocabulary["<image>"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter) * 0.2
            parameter.copy_(1 + noise if "norm" in name and name.endswith("weight") else noise)
    model.save_pretrained(directory / "hf")
    shutil.copytree(tokenizer, directory / "hf", dirs_exist_ok=True)
    (directory / "hf" / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR))
    import_hf(directory / "hf", directory / "megatron")


def _config(vocab_size: int, image_token_id: int) -> InternVLConfig:
    vision = InternVLVisionConfig(
        hidden_size=128, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, image_size=_IMAGE,
        patch_size=8, attention_bias=True,
    )  # fmt: skip
    text = LlamaConfig(
        hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=vocab_size, max_position_embeddings=256,
    )  # fmt: skip
    return InternVLConfig(
        vision_config=vision, text_config=text, image_token_id=image_token_id, tie_word_embeddings=False
    )


if __name__ == "__main__":
    die_with_parent()
    make_pair(Path(sys.argv[1]))
