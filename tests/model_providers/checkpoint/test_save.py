"""What is written is what Megatron writes: its own functions read it back, names, shapes and arguments complete."""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.training.arguments import add_megatron_arguments

from model_providers.checkpoint.peek import peek
from model_providers.checkpoint.save import save_legacy_torch, save_torch_dist
from model_providers.checkpoint.single_process import process_group_of_one, saving_on_cpu
from model_providers.checkpoint.training_args import training_args
from model_providers.errors import CheckpointError, UnsupportedModelError

_OPTIONS = {
    "num-layers": 3, "hidden-size": 32, "ffn-hidden-size": 20, "num-attention-heads": 4, "num-query-groups": 2,
    "seq-length": 64, "max-position-embeddings": 64, "position-embedding-type": "rope", "normalization": "RMSNorm",
    "padded-vocab-size": 50, "vocab-size": 50,
}  # fmt: skip
_SWITCHES = ["group-query-attention", "swiglu", "disable-bias-linear", "untie-embeddings-and-output-weights"]
_FLAGS = [*(f"--{name}={value}" for name, value in _OPTIONS.items()), *(f"--{name}" for name in _SWITCHES)]

# Megatron's validation removes them, so a trained checkpoint lacks them, too.
_DEPRECATED = {
    "batch_size", "checkpoint_activations", "cuda_graph_scope_deprecated", "model_parallel_size",
    "recompute_activations", "warmup",
}  # fmt: skip

_SHAPES = {
    "embedding.word_embeddings.weight": (50, 32),
    "decoder.final_layernorm.weight": (32,),
    "output_layer.weight": (50, 32),
}
_LAYER_SHAPES = {
    "input_layernorm.weight": (32,),
    "self_attention.linear_qkv.weight": (64, 32),
    "self_attention.linear_proj.weight": (32, 32),
    "pre_mlp_layernorm.weight": (32,),
    "mlp.linear_fc1.weight": (40, 32),
    "mlp.linear_fc2.weight": (32, 20),
}
# Megatron's canonical names: layers stacked, norms where Transformer Engine fuses them.
_STORED_LAYER_NAMES = {
    "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
    "pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
}


@dataclasses.dataclass
class TinyModel:
    args: Namespace
    state_dict: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def model() -> TinyModel:
    torch.manual_seed(0)
    shapes = dict(_SHAPES)
    for layer in range(3):
        shapes |= {f"decoder.layers.{layer}.{name}": shape for name, shape in _LAYER_SHAPES.items()}
    return TinyModel(training_args(_FLAGS), {name: torch.randn(shape) for name, shape in shapes.items()})


def _save(model: TinyModel, destination: Path, **options: Any) -> Path:
    return save_torch_dist(destination, state_dict=model.state_dict, args=model.args, **options)


def test_training_args_are_complete_and_of_no_machine() -> None:
    parser = argparse.ArgumentParser()
    add_megatron_arguments(parser)
    args = vars(training_args([*_FLAGS, "--bf16"]))
    assert {action.dest for action in parser._actions} - args.keys() == {"help", *_DEPRECATED}
    # What validation derives, in the form of a trained checkpoint.
    assert args["params_dtype"] == torch.bfloat16
    assert (args["kv_channels"], args["encoder_num_layers"], args["padded_vocab_size"]) == (8, 3, 50)
    assert (args["add_bias_linear"], args["data_parallel_size"]) == (False, 1)
    assert [name for name, value in args.items() if isinstance(value, str) and value.startswith("/")] == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--normalization", "Batch"], "normalization"),
        (["--num-attention-heads", "many"], "num-attention-heads"),
        (["--no-such-flag"], "no-such-flag"),
        (["--fp16", "--bf16"], "refuses it"),
    ],
)
def test_training_args_refused_by_megatron(flags: list[str], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        training_args([*_FLAGS, *flags])


def test_torch_dist_names_and_shapes(model: TinyModel, tmp_path: Path) -> None:
    directory = _save(model, tmp_path / "saved")
    assert directory == tmp_path / "saved" / "release"
    assert (tmp_path / "saved" / "latest_checkpointed_iteration.txt").read_text() == "release"
    assert {path.name for path in directory.iterdir()} == {".metadata", "__0_0.distcp", "metadata.json"}
    stored = {key: tensor.global_shape for key, tensor in dist_checkpointing.load_tensors_metadata(directory).items()}
    expected = dict(_SHAPES)
    for name, shape in _LAYER_SHAPES.items():
        expected[f"decoder.layers.{_STORED_LAYER_NAMES.get(name, name)}"] = (3, *shape)
    assert stored == expected


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_torch_dist_common_state(model: TinyModel, tmp_path: Path) -> None:
    common = dist_checkpointing.load_common_state_dict(_save(model, tmp_path / "saved", iteration=42))
    assert vars(common["args"]) == vars(model.args)
    assert (common["iteration"], common["checkpoint_version"]) == (42, 3.0)
    found = peek(tmp_path / "saved")
    assert (found.iteration, found.path.name, found.vocabulary_rows) == (42, "iter_0000042", 50)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # Megatron's loader uses deprecated parts
def test_megatron_reads_its_tensors_back(model: TinyModel, tmp_path: Path) -> None:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    directory = _save(model, tmp_path / "saved")
    config = TransformerConfig(
        num_layers=3, hidden_size=32, ffn_hidden_size=20, num_attention_heads=4, num_query_groups=2,
        normalization="RMSNorm", gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        add_bias_linear=False, use_cpu_initialization=True,
    )  # fmt: skip
    with process_group_of_one():
        stock = GPTModel(
            config, get_gpt_layer_local_spec(normalization="RMSNorm"), 50, 64, position_embedding_type="rope"
        )
        loaded = dist_checkpointing.load({"model": stock.sharded_state_dict()}, str(directory))["model"]
        stock.load_state_dict(loaded, strict=True)
    parameters = dict(stock.named_parameters())
    assert parameters.keys() == model.state_dict.keys()
    assert all(torch.equal(parameters[name], tensor) for name, tensor in model.state_dict.items())


def test_saving_leaves_the_process_as_it_was(model: TinyModel, tmp_path: Path) -> None:
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    before = (torch.cuda.current_device, torch.cuda.synchronize, filesystem_async._results_queue)
    with saving_on_cpu():
        inside = (torch.cuda.current_device, torch.cuda.synchronize, filesystem_async._results_queue)
    _save(model, tmp_path / "saved")
    assert (torch.cuda.current_device, torch.cuda.synchronize, filesystem_async._results_queue) == before
    assert all(replaced is not original for replaced, original in zip(inside, before, strict=True))
    assert not dist.is_initialized()
    assert not parallel_state.model_parallel_is_initialized()
    assert multiprocessing.active_children() == []


def test_saving_inside_an_existing_group_of_one(model: TinyModel, tmp_path: Path) -> None:
    with process_group_of_one():
        _save(model, tmp_path / "saved")
        assert dist.is_initialized()


def test_wrong_tensors_are_named_and_nothing_is_left(model: TinyModel, tmp_path: Path) -> None:
    lacking = {name: tensor for name, tensor in model.state_dict.items() if name != "output_layer.weight"}
    superfluous = {**model.state_dict, "decoder.layers.3.mlp.linear_fc2.weight": torch.zeros(32, 20)}
    misshapen = {**model.state_dict, "output_layer.weight": torch.zeros(51, 32)}
    for state_dict, message in [
        (lacking, r"missing for this model: \['output_layer\.weight'\]"),
        (superfluous, r"not part of it: \['decoder\.layers\.3\.mlp\.linear_fc2\.weight'\]"),
        (misshapen, r"output_layer\.weight.*\[51, 32\]"),
    ]:
        with pytest.raises(CheckpointError, match=message):
            save_torch_dist(tmp_path / "saved", state_dict=state_dict, args=model.args)
        assert list(tmp_path.iterdir()) == []


def test_mixture_of_experts_is_refused(model: TinyModel, tmp_path: Path) -> None:
    args = Namespace(**{**vars(model.args), "num_experts": 4})
    with pytest.raises(UnsupportedModelError, match="num_experts"):
        save_torch_dist(tmp_path / "saved", state_dict=model.state_dict, args=args)


def test_legacy_shards(model: TinyModel, tmp_path: Path) -> None:
    directory = save_legacy_torch(
        tmp_path / "saved", state_dict=model.state_dict, args=model.args, iteration=7, tensor_model_parallel_size=2
    )
    assert sorted(path.name for path in directory.iterdir()) == ["mp_rank_00", "mp_rank_01"]
    states = [torch.load(directory / f"mp_rank_0{r}" / "model_optim_rng.pt", weights_only=False) for r in range(2)]
    first, second = (state["model"] for state in states)
    assert (states[1]["iteration"], states[1]["checkpoint_version"]) == (7, 3.0)
    assert states[1]["args"].tensor_model_parallel_size == 2
    whole = model.state_dict

    def joined(name: str, dim: int) -> torch.Tensor:
        return torch.cat([first[name], second[name]], dim)

    assert torch.equal(joined("output_layer.weight", 0), whole["output_layer.weight"])
    qkv, proj = (
        "decoder.layers.1.self_attention.linear_qkv.weight",
        "decoder.layers.1.self_attention.linear_proj.weight",
    )
    assert torch.equal(joined(qkv, 0), whole[qkv])
    assert torch.equal(joined(proj, 1), whole[proj])
    # Each rank has half of the gate over half of the up projection.
    gate, up = whole["decoder.layers.2.mlp.linear_fc1.weight"].chunk(2)
    assert torch.equal(second["decoder.layers.2.mlp.linear_fc1.weight"], torch.cat([gate[10:], up[10:]]))
    fused, ours = "decoder.layers.0.mlp.linear_fc1.layer_norm_weight", "decoder.layers.0.pre_mlp_layernorm.weight"
    assert torch.equal(first[fused], whole[ours])
    assert torch.equal(second[fused], whole[ours])
    found = peek(tmp_path / "saved")
    assert (found.format, found.tensor_model_parallel_size, found.vocabulary_rows) == ("torch", 2, 50)


def test_legacy_of_local_layers_has_their_names(model: TinyModel, tmp_path: Path) -> None:
    args = Namespace(**{**vars(model.args), "transformer_impl": "local"})
    directory = save_legacy_torch(tmp_path / "saved", state_dict=model.state_dict, args=args)
    state = torch.load(directory / "mp_rank_00" / "model_optim_rng.pt", weights_only=False)
    assert state["model"].keys() == model.state_dict.keys()


def test_legacy_indivisible(model: TinyModel, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be divided among 3 ranks"):
        save_legacy_torch(
            tmp_path / "saved", state_dict=model.state_dict, args=model.args, tensor_model_parallel_size=3
        )
    assert list(tmp_path.iterdir()) == []
