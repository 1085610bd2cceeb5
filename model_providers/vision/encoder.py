"""What the image encoders share: the run through their layers, and building them where there is no GPU."""

from __future__ import annotations

from typing import Any

from megatron.core.transformer.transformer_block import TransformerBlock
from torch import Tensor
from torch.overrides import TorchFunctionMode

from model_providers.vision.activation import ACTIVATIONS
from model_providers.vision.attention import ImageLengths
from model_providers.vision.layer import ServingVisionLayer
from model_providers.vision.settings import EncoderSettings


def run_layers(decoder: TransformerBlock, hidden: Tensor, images: ImageLengths) -> Tensor:
    """hidden (T, hidden), packed -> the same after all layers."""
    for layer in decoder.layers:
        hidden = layer.forward_images(hidden, images)
    return hidden


def set_activation(decoder: TransformerBlock, settings: EncoderSettings) -> None:
    """Give every layer the nonlinearity between its MLP's linear layers."""
    for layer in decoder.layers:
        assert isinstance(layer, ServingVisionLayer), "the layer spec names it"
        layer.activation = ACTIVATIONS[settings.activation]


class StayOnDevice(TorchFunctionMode):
    """While active, `tensor.cuda()` returns the tensor itself.

    CLIPViTModel (megatron/core/models/vision/clip_vit_model.py:124) calls it in its constructor, which fails without a
    GPU and on the meta device. torch hands calls to the innermost mode of this thread; nothing is replaced.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") == "cuda":
            return args[0]
        return function(*args, **(kwargs or {}))
