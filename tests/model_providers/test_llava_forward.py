"""What serves is megatron-core's LLaVAModel: same class, same state-dict keys, same numbers as its own forward pass."""

from __future__ import annotations

import functools
from argparse import Namespace
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.multimodal import llava_model
from megatron.core.models.multimodal.llava_model import LLaVAModel
from megatron.core.models.vision.vit_layer_specs import get_vit_layer_with_local_spec
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model_providers.gpt import ServingGPTModel
from model_providers.llava import ServingLLaVAModel
from model_providers.transformer_config import transformer_config
from model_providers.vision.configs import projection_config, vision_config
from model_providers.vision.encoder import StayOnDevice
from model_providers.vision.projection_settings import projection_settings
from model_providers.vision.settings import encoder_settings

# Megatron's stock projection and RADIO's embedder leave a process group to be found.
pytestmark = pytest.mark.filterwarnings("ignore:Warning. tp_group is None:DeprecationWarning")

IMAGE = 49
# An exact match up to the order in which products, norms and attention add.
EMBEDDINGS = {"rtol": 0, "atol": 1e-5}
LOGITS = {"rtol": 0, "atol": 1e-5}


class PlainCoreAttention(MegatronModule):
    """In the place of Megatron's, which needs CUDA: causal in the language model, one image at a time if packed."""

    def __init__(self, config: Any, attn_mask_type: Any = None, **_: Any) -> None:
        super().__init__(config=config)
        self._causal = attn_mask_type.name == "causal"

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: Any = None, **__: Any
    ) -> Tensor:
        if packed_seq_params is None:
            return self._attend(query, key, value)
        lengths = packed_seq_params.cu_seqlens_q.diff().tolist()
        parts = [torch.split(tensor.flatten(0, -3), lengths) for tensor in (query, key, value)]
        return torch.cat([self._attend(*(part[:, None] for part in own))[:, 0] for own in zip(*parts, strict=True)])

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        heads_first = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        out = scaled_dot_product_attention(*heads_first, is_causal=self._causal, enable_gqa=True)
        return out.permute(2, 0, 1, 3).flatten(2)


class Stock(NamedTuple):
    """Megatron's own model, and what its forward pass hands to the language model: (tokens, hidden)."""

    model: LLaVAModel
    decoder_inputs: list[Tensor]

    def run(self, images: Tensor, token_ids: Tensor, **options: Any) -> Tensor:
        """Logits (tokens, vocabulary)."""
        positions = torch.arange(token_ids.shape[-1])[None]
        with torch.no_grad():
            logits, _ = self.model(images, token_ids[None], positions, None, sound_clips=torch.zeros(0), **options)
        return logits[0]


@pytest.fixture
def stock(monkeypatch: pytest.MonkeyPatch, one_process: None, model_config: Callable[..., Any]) -> Callable[..., Stock]:
    """`stock(args, state_dict)`."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))  # rotary embeddings go there
    norms = {
        "ln_pre_impl": WrappedTorchNorm,
        "ln_post_impl": WrappedTorchNorm,
    }  # the default lacks Megatron's signature
    monkeypatch.setattr(llava_model, "CLIPViTModel", functools.partial(llava_model.CLIPViTModel, **norms))

    def make(args: Namespace, state_dict: dict[str, Tensor]) -> Stock:
        config = model_config(args)
        encoder, projection = encoder_settings(vars(args)), projection_settings(vars(args))
        language = transformer_config(config)
        language.language_model_type = args.language_model_type
        for own in (
            vision := vision_config(config, encoder),
            projecting := projection_config(config, projection),
            language,
        ):
            own.perform_initialization = True
        with StayOnDevice():
            model = LLaVAModel(
                language_transformer_config=language,
                language_transformer_layer_spec=_on_cpu(get_gpt_layer_local_spec(normalization="RMSNorm")),
                language_vocab_size=args.padded_vocab_size,
                language_max_sequence_length=args.max_position_embeddings,
                vision_transformer_config=vision,
                vision_transformer_layer_spec=_on_cpu(get_vit_layer_with_local_spec()),
                drop_vision_class_token=args.disable_vision_class_token,
                vision_projection_config=projecting,
                vision_projection_layer_spec=MLPSubmodules(ColumnParallelLinear, RowParallelLinear),
                vision_projection_type=args.vision_projection_type,
                language_position_embedding_type="rope",
                img_h=args.img_h,
                img_w=args.img_w,
                patch_dim=args.patch_dim,
                image_token_index=IMAGE,
                pixel_shuffle=args.pixel_shuffle,
                dynamic_resolution=args.dynamic_resolution,
            )
        outcome = model.load_state_dict(state_dict, strict=False)
        assert [name for name in outcome.missing_keys if not name.endswith("_extra_state")] == []
        assert outcome.unexpected_keys == []
        seen: list[Tensor] = []
        model.language_model.register_forward_pre_hook(
            lambda _, __, given: seen.append(given["decoder_input"][:, 0]), with_kwargs=True
        )
        return Stock(model.eval(), seen)

    return make


def _on_cpu(spec: ModuleSpec) -> ModuleSpec:
    spec.submodules.self_attention.submodules.core_attention = PlainCoreAttention
    return spec


def _parameters(model: torch.nn.Module) -> dict[str, Tensor]:
    return dict(model.named_parameters())


_VARIANTS = {
    "clip": ("clip", []),
    "clip, class token dropped": ("clip", ["--disable-vision-class-token"]),
    "clip, pixel shuffle": ("clip", ["--disable-vision-class-token", "--pixel-shuffle"]),
    "clip, affine projection": ("clip", ["--vision-projection-type", "affine", "--vision-projection-bias"]),
    "clip, biases": ("clip", ["--vision-projection-bias", "--vision-projection-activation", "squared_relu"]),
    "siglip": ("siglip", []),
    "radio": ("radio", ["--class-token-len", "5", "--disable-vision-class-token", "--pixel-shuffle"]),
    "cradio-g": ("cradio-g", []),
}  # fmt: skip


@pytest.mark.parametrize(("encoder", "flags"), _VARIANTS.values(), ids=_VARIANTS.keys())
def test_equals_the_stock_forward_pass(
    encoder: str,
    flags: list[str],
    llava_args: Callable[..., Namespace],
    served_llava: Callable[[Namespace], Any],
    stock: Callable[..., Stock],
    packed_logits: Callable[..., Tensor],
) -> None:
    args = llava_args(encoder, *flags)
    served = served_llava(args)
    truth = stock(args, _parameters(served))
    tiles = torch.randn(3, 3, 56, 56, generator=torch.Generator().manual_seed(1))
    first, second = served.encode_images([tiles[:1], tiles[1:]])  # the second image is cut into two tiles
    prompt = torch.tensor([5, 6, IMAGE, 7, 8, IMAGE, 9])

    expected = truth.run(tiles, prompt, num_image_tiles=torch.tensor([1, 2], dtype=torch.int32))
    rows = torch.cat((torch.arange(2, 2 + len(first)), torch.arange(4 + len(first), 4 + len(first) + len(second))))
    token_ids = torch.cat(
        (prompt[:2], torch.zeros(len(first)).long(), prompt[3:5], torch.zeros(len(second)).long(), prompt[6:])
    )
    embeddings = torch.cat((first, second))

    assert len(first) * 2 == len(second)
    torch.testing.assert_close(embeddings, truth.decoder_inputs[0][rows], **EMBEDDINGS)
    torch.testing.assert_close(packed_logits(served, token_ids, rows, embeddings), expected, **LOGITS)
    assert embeddings.std() > 0.1 and expected.std() > 0.1  # or the tolerances would say little


def test_dynamic_resolution_equals_the_stock_forward_pass(
    llava_args: Callable[..., Namespace],
    served_llava: Callable[[Namespace], Any],
    stock: Callable[..., Stock],
) -> None:
    args = llava_args("radio", "--dynamic-resolution", "--disable-vision-class-token", "--pixel-shuffle")
    served = served_llava(args)
    truth = stock(args, _parameters(served))
    generator = torch.Generator().manual_seed(1)
    sizes = [(56, 84), (112, 56), (28, 28)]
    counts = [(height // 14) * (width // 14) for height, width in sizes]
    patches = [torch.randn(count, 3 * 14 * 14, generator=generator) for count in counts]
    cu_seqlens = torch.tensor([0, *counts]).cumsum(0).int()
    packing = PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens.clone(),
        max_seqlen_q=max(counts), max_seqlen_kv=max(counts),
    )  # fmt: skip
    prompt = torch.tensor([5, IMAGE, 7, IMAGE, IMAGE, 9])
    truth.run(torch.cat(patches)[None], prompt, imgs_sizes=torch.tensor(sizes), vision_packed_seq_params=packing)

    # The third input is the thumbnail of the second image.
    first, second = served.encode_images([patches[0], torch.cat(patches[1:])], [sizes[:1], sizes[1:]])
    is_image = torch.ones(len(truth.decoder_inputs[0]), dtype=torch.bool)
    is_image[[0, 1 + len(first), -1]] = False
    torch.testing.assert_close(torch.cat((first, second)), truth.decoder_inputs[0][is_image], **EMBEDDINGS)
    # What an image is encoded with makes no difference, nor does the order.
    alone = served.encode_images([torch.cat(patches[1:])], [sizes[1:]])[0]
    torch.testing.assert_close(alone, second, **EMBEDDINGS)


def test_class_and_keys_are_megatrons(
    llava_args: Callable[..., Namespace], served_llava: Callable[[Namespace], Any], stock: Callable[..., Stock]
) -> None:
    args = llava_args("clip")
    served = served_llava(args)
    truth = stock(args, _parameters(served))
    assert isinstance(served, ServingLLaVAModel) and isinstance(served, LLaVAModel)
    assert isinstance(served.language_model, ServingGPTModel)
    shapes = {name: value.shape for name, value in served.state_dict().items() if value is not None}
    assert shapes == {name: value.shape for name, value in truth.model.state_dict().items() if value is not None}
    assert {name.partition(".")[0] for name in shapes} == {"vision_model", "vision_projection", "language_model"}


def test_rows_that_nobody_wants_are_left_out_of_the_last_layer(
    llava_args: Callable[..., Namespace], served_llava: Callable[..., Any], packed_hidden: Callable[..., Tensor]
) -> None:
    served = served_llava(llava_args("clip"), packed_linears=True)
    token_ids = torch.randint(0, 49, (30,), generator=torch.Generator().manual_seed(1))
    everything = packed_hidden(served, token_ids)
    assert everything.shape == (30, 64)
    for rows in ([29], [3, 4, 17], list(range(30)), []):
        wanted = torch.tensor(rows, dtype=torch.int64)
        assert torch.equal(packed_hidden(served, token_ids, rows=wanted), everything[wanted])


def test_bfloat16_is_close_and_packed(
    llava_args: Callable[..., Namespace], served_llava: Callable[..., Any], model_config: Callable[..., Any]
) -> None:
    args = llava_args("clip", "--disable-vision-class-token", "--pixel-shuffle")
    tiles = torch.randn(5, 3, 56, 56, generator=torch.Generator().manual_seed(1))
    (expected,) = served_llava(args, packed_linears=True).encode_images([tiles])
    served = served_llava(args, packed_linears=True, dtype=torch.bfloat16)
    (actual,) = served.encode_images([tiles])
    assert served.vision_model.decoder.layers[0].mlp.linear_fc1.weight.is_meta  # what a packed weight leaves behind
    assert actual.dtype == torch.bfloat16
    similarity = torch.cosine_similarity(actual.float(), expected, dim=-1)
    assert similarity.min() > 0.999


def test_no_images(llava_args: Callable[..., Namespace], served_llava: Callable[[Namespace], Any]) -> None:
    assert served_llava(llava_args("siglip")).encode_images([]) == []


def test_the_cuda_call_is_answered_and_only_there() -> None:
    tensor = torch.zeros(2)
    with StayOnDevice():
        assert tensor.cuda() is tensor
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):
            tensor.cuda()
