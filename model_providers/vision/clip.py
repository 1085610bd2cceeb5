"""CLIP, SigLIP and InternViT: patches by convolution, learned positions for one image size, class token or none."""

from __future__ import annotations

from typing import Any, cast

import torch
from megatron.core.models.vision.clip_vit_model import CLIPViTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from model_providers.backends.norm import ServingNorm
from model_providers.vision.attention import ImageLengths
from model_providers.vision.encoder import StayOnDevice, run_layers, set_activation
from model_providers.vision.layer_specs import vision_layer_spec
from model_providers.vision.settings import EncoderSettings


class ServingCLIPViTModel(CLIPViTModel):  # type: ignore[misc]
    """CLIPViTModel for serving: same parameters and keys; `encode_tiles` replaces `forward`."""

    def encode_tiles(self, tiles: Tensor) -> Tensor:
        """tiles (N, 3, img_h, img_w) in the weights' dtype -> (N, class tokens + patches, hidden)."""
        patches = self.conv1(tiles).flatten(2).transpose(1, 2)  # (N, patches, hidden), row by row
        if self.add_class_token:
            patches = torch.cat((self.class_token.expand(len(tiles), -1, -1), patches), dim=1)
        hidden = patches + self.position_embeddings.weight
        if self.ln_pre is not None:
            hidden = self.ln_pre(hidden)
        images = ImageLengths([self.seq_length] * len(tiles))
        hidden = run_layers(self.decoder, hidden.flatten(0, 1), images)
        if self.ln_post is not None:
            hidden = self.ln_post(hidden)
        return cast(Tensor, hidden.view(len(tiles), self.seq_length, -1))


def build_clip(config: TransformerConfig, settings: EncoderSettings, pg_collection: Any) -> ServingCLIPViTModel:
    """Without weights, on the device that is current."""
    with StayOnDevice():
        model = ServingCLIPViTModel(
            config,
            vision_layer_spec(settings),
            ln_pre_impl=ServingNorm,
            ln_post_impl=ServingNorm,
            add_class_token=settings.images.num_class_tokens > 0,
            class_token_len=settings.images.num_class_tokens,
            patch_dim=settings.images.patch_dim,
            img_h=settings.images.img_h,
            img_w=settings.images.img_w,
            model_subtype=settings.model_type,
            pg_collection=pg_collection,
        )
    if not settings.final_layernorm:
        model.ln_post = None  # Hugging Face's LLaVA takes SigLIP's tokens from before its last norm
    set_activation(model.decoder, settings)
    return model
