"""LLaVA: Megatron's LLaVAModel, images encoded once and apart from the packed forward pass of its language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from megatron.core.models.multimodal.llava_model import LLaVAModel, pixel_shuffle
from torch import Tensor

from image_preprocessing.tile_tags import tile_tag_rows
from model_providers.backends.attention import AttentionBackend
from model_providers.backends.collectives import Collectives
from model_providers.backends.kv_cache import KVCache
from model_providers.backends.prepare import prepare_modules
from model_providers.backends.step_metadata import StepMetadata
from model_providers.checkpoint.load import load_weights
from model_providers.config import ModelConfig
from model_providers.gpt import ServingGPTModel
from model_providers.gpt import construct as construct_language_model
from model_providers.vision.clip import ServingCLIPViTModel, build_clip
from model_providers.vision.configs import projection_config, vision_config
from model_providers.vision.internvit_heads import with_trained_heads
from model_providers.vision.layer_specs import vision_layer_spec
from model_providers.vision.projection import ServingMultimodalProjector, build_projection
from model_providers.vision.radio import ServingRADIOViTModel, Size, build_radio
from model_providers.vision.supported import VisionSettings, vision_settings
from model_providers.vision.tile_tags import tile_tag_ids

_RADIO_FLAGS = (
    "radio_force_eval_mode",
    "radio_force_cpe_eval_mode",
    "radio_interpolate_only_cpe",
    "radio_cpe_aspect_ratio_select",
    "radio_disable_cpe",
)


class ServingLLaVAModel(LLaVAModel):  # type: ignore[misc]
    """LLaVAModel for serving: same parameters and keys; `encode_images` and `forward_packed` replace `forward`.

    Whatever the engine asks of a language model is answered by `language_model`; image rows enter its packed batch
    through `StepMetadata.images`.
    """

    vision_model: ServingCLIPViTModel | ServingRADIOViTModel
    vision_projection: ServingMultimodalProjector
    language_model: ServingGPTModel

    def __init__(self, config: ModelConfig, settings: VisionSettings) -> None:
        """Names and shapes without weights, all on the meta device. Megatron's process groups must exist."""
        encoder, projection = settings
        language_model = construct_language_model(config)
        language_config = language_model.config
        language_config.language_model_type = config.values["language_model_type"]
        encoder_config = vision_config(config, encoder)
        images = encoder.images
        super().__init__(
            language_transformer_config=language_config,
            language_transformer_layer_spec=None,
            language_vocab_size=language_model.vocab_size,
            language_max_sequence_length=language_model.max_sequence_length,
            vision_transformer_config=encoder_config,
            vision_transformer_layer_spec=vision_layer_spec(encoder),
            drop_vision_class_token=images.disable_vision_class_token,
            vision_projection_config=None,
            vision_projection_layer_spec=None,
            share_embeddings_and_output_weights=language_model.share_embeddings_and_output_weights,
            # Megatron's switches for pipeline stages without these parts; the parts are put in below.
            add_encoder=False,
            add_decoder=False,
            img_h=images.img_h,
            img_w=images.img_w,
            patch_dim=images.patch_dim,
            pixel_shuffle=images.pixel_shuffle,
            dynamic_resolution=images.dynamic_resolution,
        )
        groups = self.pg_collection
        with torch.device("meta"):
            if encoder.is_radio:
                flags = {name: bool(config.values.get(name)) for name in _RADIO_FLAGS}
                self.vision_model = build_radio(encoder_config, encoder, flags, groups)
            else:
                self.vision_model = build_clip(encoder_config, encoder, groups)
            self.vision_projection = build_projection(
                projection_config(config, projection), projection, encoder.output_size, groups
            )
        self.language_model = language_model
        self.add_encoder = self.add_decoder = True
        self.encoder_settings = encoder
        self._dtype, self._device = config.dtype, config.device
        self._tile_tag_ids: list[list[int]] | None = None

    @property
    def num_kv_heads_per_rank(self) -> int:
        return self.language_model.num_kv_heads_per_rank

    @property
    def collectives(self) -> Collectives:
        """Of the tensor-parallel group."""
        return self.language_model.collectives

    def prepare_for_serving(self, config: ModelConfig) -> None:
        """Derive what the loaded weights and arguments imply, in all three parts.

        Raises CheckpointError or UnsupportedModelError for tile tags that the tokenizer does not give.
        """
        self._tile_tag_ids = tile_tag_ids(config.values, self.encoder_settings.images)
        self.language_model.prepare_for_serving(config)
        parts_config = replace(config, quantize="none")  # for the language model alone
        for part in (self.vision_model, self.vision_projection):
            part.prepare_for_serving(parts_config)
            prepare_modules(part, parts_config, self.collectives)

    def forward_packed(
        self,
        token_ids: Tensor,
        step: StepMetadata,
        cache: KVCache,
        attention: AttentionBackend,
        rows: Tensor | None = None,
    ) -> Tensor:
        """`ServingGPTModel.forward_packed` of the language model."""
        return self.language_model.forward_packed(token_ids, step, cache, attention, rows)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """`ServingGPTModel.compute_logits` of the language model."""
        return self.language_model.compute_logits(hidden)

    @torch.inference_mode()
    def encode_images(
        self, pixels: Sequence[Tensor], imgs_sizes: Sequence[Sequence[Size]] | None = None
    ) -> list[Tensor]:
        """`embed_images` without a graph."""
        return self.embed_images(pixels, imgs_sizes)

    def embed_images(
        self, pixels: Sequence[Tensor], imgs_sizes: Sequence[Sequence[Size]] | None = None
    ) -> list[Tensor]:
        """Each image's rows in the language model's input: (num_tokens, language hidden), in the serving dtype.

        pixels: per image what `image_preprocessing.pixels.encoder_input` makes of it: (num_tiles, 3, img_h, img_w), or
        with dynamic resolution (num_patches, 3 * patch_dim^2) and in imgs_sizes the (h, w) in pixels of the grids that
        the patches belong to. All images are encoded together; with packed linears and kernels none changes a bit of
        another. Equal on all ranks. Differentiable at TP=1 before `prepare_for_serving`.
        """
        if not pixels:
            return []
        inputs = [image.to(device=self._device, dtype=self._dtype) for image in pixels]
        if self.dynamic_resolution:
            assert imgs_sizes is not None, "patches alone do not say what grid they are of"
            return self._encode_patches(inputs, imgs_sizes)
        return self._encode_tiles(inputs)

    def _encode_tiles(self, images: Sequence[Tensor]) -> list[Tensor]:
        features = self._without_class_tokens(self.vision_model.encode_tiles(torch.cat(list(images))))
        if self.encoder_settings.images.pixel_shuffle:
            features = pixel_shuffle(features)
        num_tiles, tokens_per_tile, _ = features.shape
        projected = self.vision_projection.project(features.reshape(num_tiles * tokens_per_tile, -1))
        parts = torch.split(projected.view(num_tiles, tokens_per_tile, -1), [len(image) for image in images])
        # Copies: a view of one image would keep the whole batch in memory.
        return [self._with_tile_tags(part).flatten(0, 1).clone() for part in parts]

    def _encode_patches(self, images: Sequence[Tensor], imgs_sizes: Sequence[Sequence[Size]]) -> list[Tensor]:
        patch_dim = self.encoder_settings.images.patch_dim
        sizes = [size for of_image in imgs_sizes for size in of_image]
        grids = [(height // patch_dim, width // patch_dim) for height, width in sizes]
        patches = torch.split(torch.cat(list(images)), [rows * columns for rows, columns in grids])
        encoder = cast(ServingRADIOViTModel, self.vision_model)
        features = [self._without_class_tokens(own[None]) for own in encoder.encode_patches(patches, sizes)]
        if self.encoder_settings.images.pixel_shuffle:
            features = [
                pixel_shuffle(own, h=rows, w=columns) for own, (rows, columns) in zip(features, grids, strict=True)
            ]
        projected = self.vision_projection.project(torch.cat(features, dim=1)[0])
        of_grids = iter(torch.split(projected, [own.shape[1] for own in features]))
        return [torch.cat([next(of_grids) for _ in of_image]) for of_image in imgs_sizes]

    def _without_class_tokens(self, features: Tensor) -> Tensor:
        """(N, class tokens + patches, hidden) -> (N, tokens, hidden), dropping class tokens where the model does."""
        images = self.encoder_settings.images
        return features[:, images.num_class_tokens - images.kept_class_tokens :]

    def _with_tile_tags(self, tiles: Tensor) -> Tensor:
        """One image's (num_tiles, tokens, hidden) -> the same, or (num_tiles, tag tokens + tokens, hidden)."""
        if self._tile_tag_ids is None:
            return tiles
        rows = tile_tag_rows(len(tiles), self.encoder_settings.images.max_num_tiles)
        ids = torch.tensor([self._tile_tag_ids[row] for row in rows], device=tiles.device)
        tags = self.language_model.embed_words(ids.flatten()).view(*ids.shape, -1)
        return torch.cat((tags, tiles), dim=1)


def construct(config: ModelConfig) -> ServingLLaVAModel:
    """The model on the meta device: names and shapes without weights. Megatron's process groups must exist.

    Raises UnsupportedModelError naming the argument that describes what cannot be built.
    """
    return ServingLLaVAModel(config, vision_settings(config.values, config.tensor_model_parallel_size))


def build(config: ModelConfig) -> ServingLLaVAModel:
    """Build on the meta device, load strictly, prepare. Megatron's process groups must exist.

    Raises UnsupportedModelError naming an argument, CheckpointError when the checkpoint lacks a tensor of the model or
    holds one that the model does not have.
    """
    model = construct(with_trained_heads(config))
    load_weights(model, config)
    model.eval().requires_grad_(False)
    model.prepare_for_serving(config)
    return model
