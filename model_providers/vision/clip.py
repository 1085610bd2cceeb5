"""CLIP, SigLIP and InternViT: patches by convolution, learned positions for one image size, class token or none."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.vision.clip_vit_model import CLIPViTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn.functional import linear

from model_providers.backends.norm import ServingNorm
from model_providers.backends.packed_weight import PackedWeight, pack_weight
from model_providers.backends.prepare import packs_linears
from model_providers.config import ModelConfig
from model_providers.kernels.library import kernels_for
from model_providers.vision.attention import ImageLengths
from model_providers.vision.encoder import StayOnDevice, patchify, run_layers, set_operators
from model_providers.vision.layer_specs import vision_layer_spec
from model_providers.vision.settings import EncoderSettings


class ServingCLIPViTModel(CLIPViTModel):  # type: ignore[misc]
    """CLIPViTModel for serving: same parameters and keys; `encode_tiles` replaces `forward`."""

    settings: EncoderSettings
    _packed_patches: PackedWeight | None = None

    def prepare_for_serving(self, config: ModelConfig) -> None:
        """Derive what the loaded weights imply, beside what `prepare_modules` does."""
        kernels = kernels_for(config.kernels, config.dtype, config.device)
        set_operators(self.decoder, self.settings, kernels)
        if packs_linears(config):
            # Beside the parameter, which is small and keeps the state dict truthful.
            weight = self.conv1.weight.flatten(1)
            self._packed_patches = pack_weight(weight, kernels, batch_invariant=config.batch_invariant)

    def encode_tiles(self, tiles: Tensor) -> Tensor:
        """tiles (N, 3, img_h, img_w) in the weights' dtype -> (N, class tokens + patches, hidden)."""
        patches = self._embed_patches(patchify(tiles, self.patch_dim))
        if self.add_class_token:
            patches = torch.cat((self.class_token.expand(len(tiles), -1, -1), patches), dim=1)
        hidden = patches + self.position_embeddings.weight
        if self.ln_pre is not None:
            hidden = self.ln_pre(hidden)
        images = ImageLengths([self.seq_length] * len(tiles))
        hidden = run_layers(self.decoder, hidden.flatten(0, 1), images, self.ln_post)
        return hidden.view(len(tiles), self.seq_length, -1)

    def _embed_patches(self, patches: Tensor) -> Tensor:
        """(N, patches, 3 * patch_dim^2) -> (N, patches, hidden). Patches do not overlap: conv1 is a linear layer."""
        if self._packed_patches is None:
            return linear(patches, self.conv1.weight.flatten(1), self.conv1.bias)
        return self._packed_patches.multiply(patches.flatten(0, 1), self.conv1.bias).view(*patches.shape[:2], -1)


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
    model.settings = settings
    set_operators(model.decoder, settings, kernels=None)
    return model
