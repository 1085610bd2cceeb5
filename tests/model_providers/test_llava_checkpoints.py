"""A LLaVA is written and read back, strictly, in either layout, from and to any number of ranks."""

from __future__ import annotations

import logging
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from model_providers import layer_specs
from model_providers.checkpoint.peek import list_tensors, peek
from model_providers.checkpoint.save import save_legacy_torch, save_torch_dist
from model_providers.checkpoint.single_process import process_group_of_one
from model_providers.errors import CheckpointError
from model_providers.llava import ServingLLaVAModel, build, construct
from model_providers.vision import layer_specs as vision_layer_specs

_DROP = "--disable-vision-class-token"
_VARIANTS: dict[str, tuple[str, list[str]]] = {
    "clip": ("clip", [_DROP, "--pixel-shuffle"]),
    "clip, affine": ("clip", ["--vision-projection-type", "affine", "--vision-projection-bias"]),
    "siglip": ("siglip", ["--vision-projection-normalization", "LayerNorm", "--vision-projection-bias"]),
    "siglip, no final norm": ("siglip", ["--no-vision-final-layernorm"]),
    "internvit": ("internvit", [_DROP]),
    "internvit300M": ("internvit300M", [_DROP, "--pixel-shuffle"]),
    "radio": ("radio", [_DROP, "--dynamic-resolution", "--pixel-shuffle"]),
    "radio-g": ("radio-g", [_DROP, "--vision-projection-normalization", "RMSNorm"]),
    "cradio-g": ("cradio-g", ["--class-token-len", "3"]),
}
# Two images, the second of two tiles; or of two grids, for dynamic resolution.
_TILES = [torch.randn(1, 3, 56, 56), torch.randn(2, 3, 56, 56)]
_PATCHES = [torch.randn(8, 588), torch.randn(12, 588)]
_SIZES = [[(28, 56)], [(56, 28), (28, 28)]]
_PROMPT = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])


class Written(NamedTuple):
    args: Namespace
    state_dict: dict[str, Tensor]


@pytest.fixture
def written(
    llava_args: Callable[..., Namespace],
    model_config: Callable[..., Any],
    random_weights: Callable[[torch.nn.Module], dict[str, Tensor]],
) -> Callable[[str], Written]:
    """`written(variant)`: arguments and every parameter, whole."""

    def make(variant: str) -> Written:
        encoder, flags = _VARIANTS[variant]
        args = llava_args(encoder, *flags)
        with process_group_of_one():
            return Written(args, random_weights(construct(model_config(args))))

    return make


@pytest.fixture
def load(one_process: None, model_config: Callable[..., Any]) -> Callable[..., Any]:
    """`load(directory, **changed_values)`: the model, by what the checkpoint says about itself."""

    def read(directory: Path, **changed: Any) -> Any:
        found = peek(directory)
        values = {**found.args, **changed}
        config = model_config(Namespace(**values), values=values, checkpoint=found.path, checkpoint_format=found.format)
        return build(config)

    return read


def _inputs(args: Namespace) -> dict[str, Any]:
    if args.dynamic_resolution:
        return {"images": _PATCHES, "imgs_sizes": _SIZES}
    return {"images": _TILES, "imgs_sizes": None}


def _equal(model: Any, whole: dict[str, Tensor]) -> bool:
    parameters = dict(model.named_parameters())
    assert parameters.keys() == whole.keys()
    return all(torch.equal(parameters[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize("variant", _VARIANTS)
def test_round_trip(variant: str, written: Callable[[str], Written], load: Callable[..., Any], tmp_path: Path) -> None:
    args, state_dict = written(variant)
    save_torch_dist(tmp_path / "dist", state_dict=state_dict, args=args, iteration=5)
    assert _equal(load(tmp_path / "dist"), state_dict)
    save_legacy_torch(tmp_path / "legacy", state_dict=state_dict, args=args, tensor_model_parallel_size=4)
    assert _equal(load(tmp_path / "legacy"), state_dict)


def test_two_ranks_see_what_one_sees(
    written: Callable[[str], Written],
    load: Callable[..., Any],
    packed_logits: Callable[..., Tensor],
    tmp_path: Path,
) -> None:
    jobs, expected = [], []
    for number, variant in enumerate(_VARIANTS):
        args, state_dict = written(variant)
        directory = tmp_path / str(number)
        if number % 2:
            save_torch_dist(directory, state_dict=state_dict, args=args)
        else:
            save_legacy_torch(directory, state_dict=state_dict, args=args, tensor_model_parallel_size=4)
        model = load(directory)
        inputs = _inputs(args)
        jobs.append({"checkpoint": str(directory), "token_ids": _PROMPT, **inputs})
        expected.append((model.encode_images(*inputs.values()), packed_logits(model, _PROMPT)))
    torch.save(jobs, tmp_path / "jobs.pt")
    script = Path(__file__).with_name("llava_rank.py")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *torchrun, script, tmp_path / "jobs.pt", tmp_path / "result.pt"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-4000:]
    for outcome, (images, logits) in zip(torch.load(tmp_path / "result.pt"), expected, strict=True):
        torch.testing.assert_close(outcome["images"], images, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(outcome["logits"], logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("variant", "fused"), [("siglip", True), ("internvit300M", False)])
def test_norms_go_by_the_name_that_training_gives_them_and_are_found_by_either(
    variant: str,
    fused: bool,
    written: Callable[[str], Written],
    load: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args, state_dict = written(variant)
    save_torch_dist(tmp_path / "usual", state_dict=state_dict, args=args)
    plain_name = "vision_model.decoder.layers.input_layernorm.weight"
    assert (plain_name in {tensor.name for tensor in list_tensors(peek(tmp_path / "usual"))}) is not fused
    # Layers that do not fuse write plain names, those that do the others.
    others = {} if fused else layer_specs.FUSED_NORM_KEYS
    with monkeypatch.context() as patch:
        patch.setattr(layer_specs, "FUSED_NORM_KEYS", {})
        patch.setattr(vision_layer_specs, "keys_map", lambda settings: others)
        save_torch_dist(tmp_path / "other", state_dict=state_dict, args=args)
    assert (plain_name in {tensor.name for tensor in list_tensors(peek(tmp_path / "other"))}) is fused
    assert _equal(load(tmp_path / "other"), state_dict)


@pytest.mark.parametrize("metadata", [{"non_homogeneous_layers": True}, {"singleton_local_shards": True}])
def test_layers_and_gates_stored_apart(
    metadata: dict[str, bool],
    written: Callable[[str], Written],
    load: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Megatron stores them for other kinds of optimiser."""
    args, state_dict = written("radio-g")
    stock = MegatronModule.sharded_state_dict

    def apart(self: Any, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None, **more: Any) -> Any:
        return stock(self, prefix, sharded_offsets, {**metadata, **wanted}, **more)

    wanted = metadata
    with monkeypatch.context() as patch:
        patch.setattr(ServingLLaVAModel, "sharded_state_dict", apart)
        save_torch_dist(tmp_path / "saved", state_dict=state_dict, args=args)
    names = {tensor.name for tensor in list_tensors(peek(tmp_path / "saved"))}
    assert "vision_model.decoder.layers.1.mlp.linear_fc2.weight" in names
    gate = "vision_model.decoder.layers.0.mlp.linear_fc1.weight_w"
    assert (gate in names) is ("singleton_local_shards" in metadata)
    assert _equal(load(tmp_path / "saved"), state_dict)


@pytest.mark.parametrize("layout", ["torch_dist", "legacy"])
def test_heads_of_internvit_are_counted_in_the_checkpoint(
    layout: str, written: Callable[[str], Written], load: Callable[..., Any], tmp_path: Path
) -> None:
    args, state_dict = written("internvit")
    if layout == "torch_dist":
        save_torch_dist(tmp_path / "saved", state_dict=state_dict, args=args)
    else:
        save_legacy_torch(tmp_path / "saved", state_dict=state_dict, args=args, tensor_model_parallel_size=4)
    model = load(tmp_path / "saved", vision_num_attention_heads=None, vision_kv_channels=8)
    assert model.encoder_settings.num_attention_heads == 4
    assert _equal(model, state_dict)


def test_pipeline_stages_of_a_legacy_checkpoint(
    written: Callable[[str], Written], load: Callable[..., Any], tmp_path: Path
) -> None:
    """The encoder is on the first stage, the language model on both."""
    args, state_dict = written("clip")
    directory = save_legacy_torch(tmp_path / "saved", state_dict=state_dict, args=args)
    first = directory / "mp_rank_00"
    saved = torch.load(first / "model_optim_rng.pt", weights_only=False)
    second_layer, moved = "language_model.decoder.layers.1.", {}
    for name in list(saved["model"]):
        if name.startswith((second_layer, "language_model.decoder.final", "language_model.output")):
            moved[name.replace(second_layer, "language_model.decoder.layers.0.")] = saved["model"].pop(name)
    for stage, model in enumerate((saved["model"], moved)):
        (directory / f"mp_rank_00_{stage:03d}").mkdir()
        torch.save({**saved, "model": model}, directory / f"mp_rank_00_{stage:03d}" / "model_optim_rng.pt")
    (first / "model_optim_rng.pt").unlink()
    first.rmdir()
    assert _equal(load(tmp_path / "saved"), state_dict)


@pytest.mark.parametrize("layout", ["torch_dist", "legacy"])
def test_absent_projection_is_zero_if_allowed_and_said_aloud(
    layout: str,
    written: Callable[[str], Written],
    load: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args, state_dict = written("clip")
    with monkeypatch.context() as patch:
        _write_without(patch, "vision_projection.")
        save = save_torch_dist if layout == "torch_dist" else save_legacy_torch
        without = {name: tensor for name, tensor in state_dict.items() if not name.startswith("vision_projection.")}
        save(tmp_path / "saved", state_dict=without, args=args)
    with pytest.raises(CheckpointError, match=r"lacks 'vision_projection\.encoder\.linear_fc1\.weight'"):
        load(tmp_path / "saved")
    caplog.set_level(logging.WARNING, "model_providers")
    model = load(tmp_path / "saved", allow_missing_vision_projection_checkpoint=True)
    assert "HAS NO VISION PROJECTION" in caplog.text and str(tmp_path) in caplog.text
    assert all(not image.any() for image in model.encode_images(_TILES))
    rest = dict(model.named_parameters())
    assert all(torch.equal(rest[name], tensor) for name, tensor in without.items())


def test_a_projection_that_is_there_is_read_all_the_same(
    written: Callable[[str], Written], load: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    args, state_dict = written("clip")
    save_torch_dist(tmp_path / "saved", state_dict=state_dict, args=args)
    assert _equal(load(tmp_path / "saved", allow_missing_vision_projection_checkpoint=True), state_dict)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"vision_num_layers": 3}, r"'vision_model\.decoder\.layers\.\S+ of shape \(2, .*call for \(3, "),
        ({"vision_num_layers": 1}, r"'vision_model\.decoder\.layers\.\S+ of shape \(2, .*call for \(1, "),
        ({"vision_ffn_hidden_size": 64}, r"vision_model\.decoder\.layers\.mlp\.linear_fc1\.weight' of shape"),
        ({"vision_projection_bias": True}, r"lacks 'vision_projection\.encoder\.linear_fc1\.bias'"),
        ({"img_h": 28, "img_w": 28}, r"vision_model\.position_embeddings\.weight' of shape \(17, 32\)"),
        ({"vision_model_type": "siglip", "disable_vision_class_token": False, "pixel_shuffle": False}, "vision_model"),
    ],
)
def test_other_arguments_than_the_checkpoints_are_noticed(
    changed: dict[str, Any], named: str, written: Callable[[str], Written], load: Callable[..., Any], tmp_path: Path
) -> None:
    args, state_dict = written("clip")
    save_torch_dist(tmp_path / "saved", state_dict=state_dict, args=args)
    with pytest.raises(CheckpointError, match=named):
        load(tmp_path / "saved", **changed)


def test_wrong_tensors_are_not_written(written: Callable[[str], Written], tmp_path: Path) -> None:
    args, state_dict = written("clip")
    extra = {**state_dict, "vision_model.ln_post.weight": torch.zeros(32)}
    with pytest.raises(CheckpointError, match=r"not part of it: \['vision_model\.ln_post\.weight'\]"):
        save_torch_dist(tmp_path / "saved", state_dict=extra, args=args)
    assert list(tmp_path.iterdir()) == []


def _write_without(patch: pytest.MonkeyPatch, prefix: str) -> None:
    """Make saving take a model that lacks a part, as one put together from others does."""
    from model_providers.checkpoint import save

    whole = save._llava_model_on_meta

    def partial(args: Namespace) -> Any:
        model = whole(args)
        delattr(model, prefix.rstrip("."))
        return model

    patch.setattr(save, "_llava_model_on_meta", partial)
