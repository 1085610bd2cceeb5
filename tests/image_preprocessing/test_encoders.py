"""The encoder table agrees with Megatron's sources."""

from __future__ import annotations

import pytest

from image_preprocessing.encoders import find_encoder
from image_preprocessing.errors import ImageSettingsError


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("clip", (24, 1024, 16, 4096)),
        ("siglip", (27, 1152, 16, 4304)),
        ("internvit", (45, 3200, 24, 12800)),
        ("internvit300M", (24, 1024, 16, 4096)),
        ("radio", (32, 1280, 16, 5120)),
        ("radio-g", (40, 1536, 24, 4096)),
        ("cradio-g", (40, 1536, 24, 6144)),
    ],
)
def test_transformer_sizes(name, sizes):
    encoder = find_encoder(name)
    assert (encoder.num_layers, encoder.hidden_size, encoder.num_attention_heads, encoder.ffn_hidden_size) == sizes
    assert encoder.is_radio == ("radio" in name)


@pytest.mark.parametrize("name", ["hf://google/siglip", "vit", None, 3])
def test_an_unknown_encoder_is_refused_with_those_there_are(name):
    with pytest.raises(ImageSettingsError, match=r"^vision_model_type: .* not one of clip, siglip") as caught:
        find_encoder(name)
    assert caught.value.argument == "vision_model_type"
