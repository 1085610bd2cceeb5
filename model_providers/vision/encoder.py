"""What the image encoders share: cutting patches, the run through the layers, and building where there is no GPU."""

from __future__ import annotations

from typing import Any

from megatron.core.transformer.transformer_block import TransformerBlock
from torch import Tensor
from torch.overrides import TorchFunctionMode

from model_providers.backends.norm import ServingNorm
from model_providers.kernels.library import Kernels
from model_providers.vision.activation import activation_for
from model_providers.vision.attention import ImageLengths
from model_providers.vision.layer import ServingVisionLayer
from model_providers.vision.settings import EncoderSettings


def patchify(tiles: Tensor, patch_dim: int) -> Tensor:
    """(N, 3, h, w) -> (N, patches, 3 * patch_dim * patch_dim), patches row by row, each channel by channel."""
    count, channels, height, width = tiles.shape
    grid = tiles.reshape(count, channels, height // patch_dim, patch_dim, width // patch_dim, patch_dim)
    return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def run_layers(
    decoder: TransformerBlock, hidden: Tensor, images: ImageLengths, last_norm: ServingNorm | None
) -> Tensor:
    """hidden (T, hidden), packed -> the same after all layers, and after a norm if the encoder ends with one."""
    update: Tensor | None = None
    for layer in decoder.layers:
        hidden, update = layer.forward_images(hidden, update, images)
    assert update is not None, "an encoder has layers"
    return hidden + update if last_norm is None else last_norm.add(hidden, update)[1]


def set_operators(decoder: TransformerBlock, settings: EncoderSettings, kernels: Kernels | None) -> None:
    """Have every layer attend, and compute the nonlinearity of its MLP, by the kernels or by torch's operators."""
    activation = activation_for(settings.activation, kernels)
    for layer in decoder.layers:
        assert isinstance(layer, ServingVisionLayer), "the layer spec names it"
        layer.activation = activation
        layer.self_attention.kernels = kernels


class StayOnDevice(TorchFunctionMode):
    """While active, `tensor.cuda()` returns the tensor itself.

    CLIPViTModel (megatron/core/models/vision/clip_vit_model.py:124) calls it in its constructor, which fails without a
    GPU and on the meta device. torch hands calls to the innermost mode of this thread; nothing is replaced.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") == "cuda":
            return args[0]
        return function(*args, **(kwargs or {}))
