"""How many heads a trained InternViT has: its own 25, or more, for the sake of the tensor-parallel size of training.

Megatron-LM's examples/multimodal/config.py makes them (24 // size + 1) * size; the added ones are padding. The
checkpoint's tensors tell, which is safer than the size that its args happen to hold.
"""

from __future__ import annotations

from dataclasses import replace

from model_providers.checkpoint.peek import list_tensors, peek
from model_providers.config import ModelConfig

_QKV = "self_attention.linear_qkv.weight"
_HEAD_DIM = 128


def with_trained_heads(config: ModelConfig) -> ModelConfig:
    """`config` with `vision_num_attention_heads` filled in, for an InternViT of which nobody said it."""
    values = config.values
    if values["vision_model_type"] != "internvit" or values.get("vision_num_attention_heads") is not None:
        return config
    # Layers may be stacked in one tensor, and ranks of a legacy checkpoint have a part each.
    stored = [t for t in list_tensors(peek(config.checkpoint)) if t.name.startswith("vision_model.") and _QKV in t.name]
    if not stored:
        return config  # loading will say what is missing
    rows = sum(tensor.shape[-2] for tensor in stored if tensor.name == stored[0].name)
    heads = rows // (3 * (values.get("vision_kv_channels") or _HEAD_DIM))
    return replace(config, values={**values, "vision_num_attention_heads": heads})
