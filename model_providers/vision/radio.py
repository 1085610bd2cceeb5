"""RADIO: patches by a linear layer, positions resized to the image, several class tokens, any image size if dynamic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.models.vision.radio import RADIOViTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from model_providers.backends.linear import ServingColumnParallelLinear
from model_providers.backends.norm import ServingNorm
from model_providers.config import ModelConfig
from model_providers.kernels.library import kernels_for
from model_providers.vision.attention import ImageLengths
from model_providers.vision.encoder import patchify, run_layers, set_operators
from model_providers.vision.layer_specs import vision_layer_spec
from model_providers.vision.settings import EncoderSettings

# Largest image side that positions are stored for, in pixels. Source: LLaVAModel.__init__ (llava_model.py).
_POSITIONS_SIDE = {"radio": 2048, "radio-g": 1792, "cradio-g": 2048}

Size = tuple[int, int]


class ServingRADIOViTModel(RADIOViTModel):  # type: ignore[misc]
    """RADIOViTModel for serving: same parameters and keys; `encode_tiles` and `encode_patches` replace `forward`."""

    settings: EncoderSettings

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._positions_of: dict[Size, Tensor] = {}

    def prepare_for_serving(self, config: ModelConfig) -> None:
        """Choose the operators, beside what `prepare_modules` does."""
        set_operators(self.decoder, self.settings, kernels_for(config.kernels, config.dtype, config.device))

    def encode_tiles(self, tiles: Tensor) -> Tensor:
        """tiles (N, 3, img_h, img_w) in the weights' dtype -> (N, class tokens + patches, hidden)."""
        size = (tiles.shape[2], tiles.shape[3])
        encoded = self.encode_patches(list(patchify(tiles, self.patch_dim)), [size] * len(tiles))
        return torch.stack(encoded)

    def encode_patches(self, patches: Sequence[Tensor], sizes: Sequence[Size]) -> list[Tensor]:
        """Images of any size together: each (patches, 3 * patch_dim^2) with its (h, w) in pixels.

        Returns each image's (class tokens + patches, hidden).
        """
        embedded = self.embedder.apply_gathered(torch.cat(list(patches)))
        class_tokens = [self.class_token] if self.add_class_token else []
        parts: list[Tensor] = []
        for own, size in zip(torch.split(embedded, [len(image) for image in patches]), sizes, strict=True):
            parts += [*class_tokens, own + self._positions(size)]
        images = ImageLengths([self.class_token_len + len(image) for image in patches])
        hidden = torch.cat(parts)
        if self.ln_pre is not None:
            hidden = self.ln_pre(hidden)
        hidden = run_layers(self.decoder, hidden, images, self.ln_post)
        return list(torch.split(hidden, images.lengths))

    def _positions(self, size: Size) -> Tensor:
        """(patches of an image of this size, hidden).

        Resizing takes long, so recent sizes are kept, in no more memory than the table that they are made from.
        """
        kept = self._positions_of
        if size not in kept:
            positions = self.get_pos_enc(1, None, size)[0].contiguous()
            while kept and len(positions) + sum(map(len, kept.values())) > self.max_num_patches:
                del kept[next(iter(kept))]
            kept[size] = positions
        return kept[size]


def build_radio(
    config: TransformerConfig, settings: EncoderSettings, flags: dict[str, bool], pg_collection: Any
) -> ServingRADIOViTModel:
    """Without weights, on the device that is current. flags: the radio_* arguments, by their names."""
    is_g = settings.model_type == "radio-g"
    side = _POSITIONS_SIDE[settings.model_type]
    model = ServingRADIOViTModel(
        config,
        vision_layer_spec(settings),
        ln_post_impl=ServingNorm if settings.final_layernorm else None,
        use_mask_token=is_g,
        add_class_token=settings.images.num_class_tokens > 0,
        class_token_len=settings.images.num_class_tokens,
        patch_dim=settings.images.patch_dim,
        img_h=settings.images.img_h,
        img_w=settings.images.img_w,
        max_img_h=side,
        max_img_w=side,
        has_cpe=not flags["radio_disable_cpe"],
        embedder_bias=is_g,
        dynamic_resolution=settings.images.dynamic_resolution,
        force_eval_mode=flags["radio_force_eval_mode"],
        force_cpe_eval_mode=flags["radio_force_cpe_eval_mode"],
        interpolate_only_cpe=flags["radio_interpolate_only_cpe"],
        cpe_aspect_ratio_select=flags["radio_cpe_aspect_ratio_select"],
        pg_collection=pg_collection,
    )
    model.embedder = ServingColumnParallelLinear(
        3 * settings.images.patch_dim**2,
        settings.hidden_size,
        config=config,
        init_method=config.init_method,
        bias=is_g,
        gather_output=False,
        tp_group=pg_collection.tp,
    )
    model.settings = settings
    set_operators(model.decoder, settings, kernels=None)
    return model
