"""A model with quantized weights equals one that holds the rounded weights, and nothing else of it is rounded."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from model_providers.backends.prepare import weights_bytes
from model_providers.errors import CheckpointError, UnsupportedModelError
from model_providers.llava import construct

TOKENS = torch.arange(3, 40)


@pytest.fixture
def serving(model_config: Callable[..., Any], one_process: None) -> Callable[..., Any]:
    """`serving(args, weights, **changes)`: the model with these weights, ready; packed linear layers."""

    def make(args: Namespace, weights: dict[str, Tensor], **changes: Any) -> Any:
        config = model_config(args, **{"packed_linears": True, **changes})
        model = construct(config)
        parameters = {name: torch.nn.Parameter(value) for name, value in weights.items()}
        model.load_state_dict(parameters, strict=False, assign=True)
        model.eval().requires_grad_(False)
        model.prepare_for_serving(config)
        return model

    return make


@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_those_of_the_rounded_weights(
    llava_args: Callable[..., Namespace],
    served_llava: Callable[..., Any],
    serving: Callable[..., Any],
    packed_logits: Callable[..., Tensor],
    tied: bool,
) -> None:
    args = llava_args("siglip")
    args.untie_embeddings_and_output_weights = not tied
    plain = served_llava(args, packed_linears=True)
    quantized = served_llava(args, packed_linears=True, quantize="int8")
    before, rounded = ({n: t for n, t in m.state_dict().items() if t is not None} for m in (plain, quantized))
    changed = {name for name, value in before.items() if not torch.equal(value, rounded[name])}
    linears = {f"decoder.layers.{layer}.{part}.weight" for layer in (0, 1) for part in _PARTS}
    expected = linears if tied else linears | {"output_layer.weight"}
    assert changed == {f"language_model.{name}" for name in expected}
    assert weights_bytes(quantized) < weights_bytes(plain)
    logits = packed_logits(quantized, TOKENS)
    reference = serving(args, rounded)
    if tied:
        # The table of embeddings stays as it is; the head made of it is rounded.
        head = quantized.language_model._packed_head.unpacked()
        hidden = torch.zeros(1, head.shape[1]).index_fill(1, torch.tensor([5]), 1.0)
        torch.testing.assert_close(quantized.compute_logits(hidden)[0], head[:, 5])
        reference.language_model._packed_head = quantized.language_model._packed_head
    torch.testing.assert_close(logits, packed_logits(reference, TOKENS), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits, packed_logits(plain, TOKENS), rtol=1e-4, atol=1e-4)


_PARTS = ("self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2")


@pytest.mark.parametrize("changes", [{"kernels": "off"}, {"packed_linears": False}, {"dtype": torch.float16}])
def test_without_kernels_it_is_refused_with_what_to_do(
    llava_args: Callable[..., Namespace], served_llava: Callable[..., Any], changes: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedModelError, match=r"quantize: int8 needs.*kernels\.build.*without --quantize"):
        served_llava(llava_args("siglip"), **{"packed_linears": True, "quantize": "int8", **changes})


@pytest.mark.parametrize(
    ("name", "tied"), [("decoder.layers.1.mlp.linear_fc2.weight", False), ("embedding.word_embeddings.weight", True)]
)
def test_a_weight_that_is_not_finite_is_named(
    llava_args: Callable[..., Namespace],
    random_weights: Callable[..., dict[str, Tensor]],
    model_config: Callable[..., Any],
    serving: Callable[..., Any],
    name: str,
    tied: bool,
) -> None:
    args = llava_args("siglip")
    args.untie_embeddings_and_output_weights = not tied
    weights = random_weights(construct(model_config(args)))
    weights[f"language_model.{name}"][-1, -1] = torch.nan
    named = "output head" if tied else "layers.1.mlp.linear_fc2.weight"
    with pytest.raises(CheckpointError, match=f"{named}.* not finite; serve it without --quantize"):
        serving(args, weights, quantize="int8")
