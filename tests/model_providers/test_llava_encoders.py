"""Encoders whose layers megatron-core lacks, and what the model does around every encoder."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core.models.vision.radio import RADIOViTModel
from megatron.core.models.vision.vit_layer_specs import get_vit_layer_with_local_spec
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from image_preprocessing.pixels import patchify as patchify_pixels
from image_preprocessing.plan import plan_image
from model_providers.errors import CheckpointError, UnsupportedModelError
from model_providers.llava import construct
from model_providers.vision.configs import vision_config
from model_providers.vision.encoder import patchify
from model_providers.vision.layer import InternViTSelfAttention
from model_providers.vision.settings import encoder_settings

_DROP = "--disable-vision-class-token"
_HEAD_DIM = 8


class PlainAttention(MegatronModule):
    """Attention among all tokens of a tile, in the place of Megatron's, which needs CUDA."""

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__(config=config)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        out = scaled_dot_product_attention(*(tensor.permute(1, 2, 0, 3) for tensor in (query, key, value)))
        return out.permute(2, 0, 1, 3).flatten(2)


class ScaledLayer(TransformerLayer):
    """Megatron's own layer, with what each half adds scaled by channel."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ls1 = torch.nn.Parameter(torch.empty(self.config.hidden_size))
        self.ls2 = torch.nn.Parameter(torch.empty(self.config.hidden_size))
        self.self_attn_bda = lambda *_: partial(self._add, self.ls1)
        self.mlp_bda = lambda *_: partial(self._add, self.ls2)

    @staticmethod
    def _add(scale: Tensor, output_and_bias: tuple[Tensor, Tensor], residual: Tensor, _: float) -> Tensor:
        output, bias = output_and_bias
        return residual + (output + bias) * scale


@pytest.mark.filterwarnings("ignore:Warning. tp_group is None:DeprecationWarning")
def test_radio_g_equals_megatrons_encoder_with_scaled_layers(
    llava_args: Callable[..., Namespace], served_llava: Callable[[Namespace], Any], model_config: Callable[..., Any]
) -> None:
    args = llava_args("radio-g")
    served = served_llava(args)
    spec = get_vit_layer_with_local_spec()
    spec.module = ScaledLayer
    spec.submodules.self_attention.submodules.core_attention = PlainAttention
    config = vision_config(model_config(args), encoder_settings(vars(args)))
    stock = RADIOViTModel(
        config, spec, ln_post_impl=WrappedTorchNorm, use_mask_token=True, class_token_len=5, patch_dim=14, img_h=56,
        img_w=56, max_img_h=1792, max_img_w=1792, embedder_bias=True,
    )  # fmt: skip
    outcome = stock.load_state_dict(dict(served.vision_model.named_parameters()), strict=False)
    assert outcome.unexpected_keys == []
    tiles = torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = stock.eval()(tiles)
        actual = served.vision_model.encode_tiles(tiles)
    assert actual.shape == (2, 5 + 16, 32)
    torch.testing.assert_close(actual, expected, rtol=0, atol=5e-6)


def test_padding_heads_of_internvit_change_nothing(
    llava_args: Callable[..., Namespace], served_llava: Callable[[Namespace], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training adds heads to make their number divisible; whatever they hold, the result is that of the real ones."""
    monkeypatch.setattr(InternViTSelfAttention, "num_real_heads", 3)
    padded = served_llava(llava_args("internvit", f"--vision-kv-channels={_HEAD_DIM}"))
    real = served_llava(llava_args("internvit", "--vision-num-attention-heads=3", f"--vision-kv-channels={_HEAD_DIM}"))
    weights = dict(padded.named_parameters())
    # Heads are at the end of rows in what makes them, of columns in what takes them.
    cut = {
        name: weights[name][tuple(map(slice, parameter.shape))].clone() for name, parameter in real.named_parameters()
    }
    outcome = real.load_state_dict(cut, strict=False)
    assert outcome.unexpected_keys == []
    tiles = torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(padded.encode_images([tiles]), real.encode_images([tiles]), rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("encoder", "flags"),
    [
        ("clip", []),
        ("clip", [_DROP, "--pixel-shuffle", "--use-tiling", "--max-num-tiles=6", "--use-thumbnail"]),
        ("siglip", []),
        ("internvit", [_DROP]),
        ("internvit300M", [_DROP, "--pixel-shuffle"]),
        ("radio", []),
        ("radio-g", [_DROP]),
        ("cradio-g", ["--dynamic-resolution", "--use-thumbnail", _DROP, "--pixel-shuffle"]),
    ],
)
def test_as_many_rows_as_planned(
    encoder: str, flags: list[str], llava_args: Callable[..., Namespace], served_llava: Callable[[Namespace], Any]
) -> None:
    served = served_llava(llava_args(encoder, *flags))
    settings = served.encoder_settings.images
    plans = [plan_image(width, height, settings) for width, height in ((56, 56), (30, 200), (171, 20))]
    if settings.dynamic_resolution:
        counts = [sum(h * w for h, w in plan.imgs_sizes) // 14**2 for plan in plans]
        pixels = [torch.randn(count, 3 * 14**2) for count in counts]
        images = served.encode_images(pixels, [plan.imgs_sizes for plan in plans])
    else:
        images = served.encode_images([torch.randn(plan.num_tiles, 3, 56, 56) for plan in plans])
    assert [image.shape for image in images] == [(plan.num_tokens, 64) for plan in plans]
    assert all(image.untyped_storage().nbytes() == image.nbytes for image in images)  # none keeps the others in memory


def test_patches_are_cut_as_the_image_processor_cuts_them() -> None:
    tile = torch.randn(3, 28, 42)
    assert torch.equal(patchify(tile[None], 14)[0], torch.from_numpy(patchify_pixels(tile.numpy(), 14)))


def test_positions_of_many_sizes_take_no_more_memory_than_their_table(
    llava_args: Callable[..., Namespace], served_llava: Callable[[Namespace], Any]
) -> None:
    encoder = served_llava(llava_args("radio", "--dynamic-resolution")).vision_model
    encoder.max_num_patches = 20
    sizes = [(14, 14 * width) for width in range(1, 9)]
    with torch.inference_mode():
        for size in [*sizes, *sizes]:
            count = size[1] // 14
            kept = encoder.encode_patches([torch.randn(count, 588)], [size])[0]
            assert len(kept) == encoder.class_token_len + count
            assert sum(map(len, encoder._positions_of.values())) <= 20
    assert list(encoder._positions_of) == [(14, 98), (14, 112)]


def test_training_can_differentiate_what_will_be_served(
    llava_args: Callable[..., Namespace],
    model_config: Callable[..., Any],
    random_weights: Callable[[torch.nn.Module], dict[str, Tensor]],
    one_process: None,
) -> None:
    model = construct(model_config(llava_args("clip", _DROP, "--pixel-shuffle")))
    weights = {name: torch.nn.Parameter(value) for name, value in random_weights(model).items()}
    model.load_state_dict(weights, strict=False, assign=True)
    tiles = torch.randn(1, 3, 56, 56)
    model.embed_images([tiles])[0].square().sum().backward()
    for part in (model.vision_model, model.vision_projection):
        without = [name for name, parameter in part.named_parameters() if parameter.grad is None]
        assert without == []
    assert not model.encode_images([tiles])[0].requires_grad


@pytest.fixture
def tokenizer_of(tmp_path: Path) -> Callable[..., Path]:
    """`tokenizer_of(pattern, words)`: a tokenizer whose tokens are the matches of `pattern`, among these words."""

    def write(pattern: str, words: list[str]) -> Path:
        split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        model = {"type": "WordLevel", "vocab": {word: index for index, word in enumerate(words)}, "unk_token": "<"}
        missing = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
        tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": split, "model": model, **missing}
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
        return tmp_path

    return write


_TAGS = ["--use-tiling", "--max-num-tiles=2", "--use-thumbnail", "--use-tile-tags", "--tokenizer-prompt-format=chatml"]


def test_tile_tags_come_before_each_tile(
    llava_args: Callable[..., Namespace], served_llava: Callable[[Namespace], Any], tokenizer_of: Callable[..., Path]
) -> None:
    path = tokenizer_of("<|>|tile|_|.+?(?=>)", ["<", "tile", "_", ">", "1", "2", "global_thumbnail"])
    served = served_llava(llava_args("siglip", *_TAGS, f"--tokenizer-model={path}"))
    plain = served_llava(llava_args("siglip"))
    cut, whole = torch.randn(3, 3, 56, 56), torch.randn(1, 3, 56, 56)
    words = served.language_model.embedding.word_embeddings.weight
    expected = []
    for tiles, tags in ((cut, (4, 5, 6)), (whole, (6,))):  # the last tile is the thumbnail, a single one is the last
        (rows,) = plain.encode_images([tiles])
        for own, tag in zip(torch.split(rows, 16), tags, strict=True):
            expected += [words[[0, 1, 2, tag, 3]], own]
    torch.testing.assert_close(torch.cat(served.encode_images([cut, whole])), torch.cat(expected), rtol=0, atol=2e-6)


def test_tile_tags_of_another_length_than_in_training(
    llava_args: Callable[..., Namespace], served_llava: Callable[[Namespace], Any], tokenizer_of: Callable[..., Path]
) -> None:
    path = tokenizer_of("[<_>]|[^<_>]+", ["<", "tile", "_", ">", "1", "2", "global", "thumbnail"])
    args = llava_args("siglip", *_TAGS, f"--tokenizer-model={path}")
    with pytest.raises(
        UnsupportedModelError, match="use_tile_tags: <tile_global_thumbnail> has 7 tokens here and 5 in"
    ):
        served_llava(args)
    args.tokenizer_model = None
    with pytest.raises(UnsupportedModelError, match=r"^tokenizer_model: is needed"):
        served_llava(args)
    args.tokenizer_model = str(path)
    (path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: is not a tokenizer"):
        served_llava(args)
