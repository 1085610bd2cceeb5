"""Peeking finds the iteration, the format and the args in every layout, and names the file when it cannot."""

from __future__ import annotations

import argparse
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from model_providers.checkpoint.peek import CheckpointPeek, list_tensors, peek
from model_providers.checkpoint.single_process import process_group_of_one, saving_on_cpu
from model_providers.errors import CheckpointError

TRACKER = "latest_checkpointed_iteration.txt"
Plant = Callable[..., Path]


def test_args_format_and_iteration(plant: Plant, layout: str, args: argparse.Namespace) -> None:
    found = peek(plant(args))
    assert found.format == ("torch" if layout == "legacy" else "torch_dist")
    assert found.args == vars(args)
    assert found.has_args
    assert (found.iteration, found.checkpoint_version) == (7, 3.0)
    assert found.vocabulary_rows == 8
    assert not torch.distributed.is_initialized()


def test_tracker_step_release_and_bare_directory_agree(plant: Plant, args: argparse.Namespace) -> None:
    seven = plant(args)
    release = plant(args, name="release")
    nine = plant(args, name="iter_0000009")
    load = seven.parent
    (load / TRACKER).write_text("7\n")
    assert peek(load).path == seven
    assert peek(load, ckpt_step=9).path == nine
    (load / TRACKER).write_text("release")
    assert (peek(load).path, peek(load).iteration) == (release, 0)
    (load / TRACKER).unlink()
    assert (peek(nine).path, peek(nine).iteration) == (nine, 9)


def test_a_bare_directory_of_another_name(plant: Plant, args: argparse.Namespace) -> None:
    directory = plant(args, name="my-model")
    assert (peek(directory).path, peek(directory).iteration) == (directory, 7)  # as its own state says
    with pytest.raises(CheckpointError, match="not that of --ckpt-step 3"):
        peek(directory, ckpt_step=3)


@pytest.mark.parametrize("content", ["", "seven", "-1", "7.5", "iter_0000007", "\x00\xff", "²"])
def test_tracker_garbage_is_named(plant: Plant, args: argparse.Namespace, content: str) -> None:
    load = plant(args).parent
    (load / TRACKER).write_text(content)
    with pytest.raises(CheckpointError, match=rf"{TRACKER}: .*--ckpt-step \{{7\}}"):
        peek(load)


def test_missing_iterations_are_named(plant: Plant, args: argparse.Namespace) -> None:
    load = plant(args).parent
    with pytest.raises(CheckpointError, match=f"{TRACKER}: is missing"):
        peek(load)
    with pytest.raises(CheckpointError, match=r"iter_0000008: does not exist, although --ckpt-step 8"):
        peek(load, ckpt_step=8)
    (load / TRACKER).write_text("release")
    with pytest.raises(CheckpointError, match=r"release: does not exist"):
        peek(load)


def test_paths_that_are_no_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        peek(tmp_path / "nowhere")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(CheckpointError, match="not a directory"):
        peek(file)
    step = tmp_path / "iter_0000001"
    step.mkdir()
    (tmp_path / TRACKER).write_text("1")
    with pytest.raises(CheckpointError, match=r"iter_0000001: holds neither \.metadata"):
        peek(tmp_path)
    (step / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="import-hf"):
        peek(tmp_path)
    (step / "metadata.json").write_text(json.dumps({"sharded_backend": "zarr"}))
    with pytest.raises(CheckpointError, match=r"metadata\.json: says the format is 'zarr'"):
        peek(tmp_path)
    (step / "metadata.json").write_text("[")
    with pytest.raises(CheckpointError, match=r"metadata\.json: is damaged"):
        peek(tmp_path)


def holding_args(directory: Path, layout: str) -> Path:
    files = {"torch_dist": "__0_0.distcp", "common_pt": "common.pt", "legacy": "mp_rank_00/model_optim_rng.pt"}
    return directory / files[layout]


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.9])
def test_truncated_files_are_named(plant: Plant, layout: str, args: argparse.Namespace, fraction: float) -> None:
    directory = plant(args)
    file = holding_args(directory, layout)
    file.write_bytes(file.read_bytes()[: int(fraction * file.stat().st_size)])
    with pytest.raises(CheckpointError, match=file.name.replace(".", r"\.")):
        peek(directory)


@pytest.mark.parametrize("layout", ["torch_dist", "common_pt"], indirect=True)
@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.9])
def test_truncated_metadata_is_named(plant: Plant, args: argparse.Namespace, fraction: float) -> None:
    directory = plant(args)
    file = directory / ".metadata"
    file.write_bytes(file.read_bytes()[: int(fraction * file.stat().st_size)])
    with pytest.raises(CheckpointError, match=r"\.metadata"):
        peek(directory)


def test_missing_files_are_named(plant: Plant, layout: str, args: argparse.Namespace) -> None:
    directory = plant(args)
    needed = directory / ".metadata" if layout == "common_pt" else holding_args(directory, layout)
    needed.unlink()
    with pytest.raises(CheckpointError, match=needed.name.replace(".", r"\.")):
        peek(directory)


def test_checkpoints_without_args_say_so(plant: Plant) -> None:
    found = peek(plant(None))
    assert not found.has_args
    assert found.args == {}


@pytest.mark.parametrize("args", [3, "text", [1], (1, 2)])
def test_args_of_a_wrong_type_are_an_error(plant: Plant, args: object) -> None:
    with pytest.raises(CheckpointError, match="not a namespace"):
        peek(plant(args))


def test_args_as_a_dictionary(plant: Plant) -> None:
    assert peek(plant({"num_layers": 2})).args == {"num_layers": 2}


@pytest.mark.parametrize("layout", ["common_pt"], indirect=True)
def test_torch_dist_without_common_state(plant: Plant, args: argparse.Namespace) -> None:
    directory = plant(args)
    (directory / "common.pt").unlink()
    with pytest.raises(CheckpointError, match=r"lists no 'common_state'"):
        peek(directory)


@pytest.mark.parametrize("layout", ["legacy"], indirect=True)
def test_legacy_ranks_are_counted(plant: Plant, args: argparse.Namespace) -> None:
    directory = plant(args)
    shutil.copytree(directory / "mp_rank_00", directory / "mp_rank_01")
    found = peek(directory)
    assert found.tensor_model_parallel_size == 2  # what is on disk, not what args say
    assert found.vocabulary_rows == 16
    assert [(t.part, t.shape) for t in list_tensors(found)] == [("mp_rank_00", (8, 4)), ("mp_rank_01", (8, 4))]
    (directory / "mp_rank_01" / "model_optim_rng.pt").unlink()
    with pytest.raises(CheckpointError, match=r"mp_rank_01/model_optim_rng\.pt: is missing"):
        peek(directory)


def test_tensors_are_listed(plant: Plant, layout: str, args: argparse.Namespace) -> None:
    tensors = list_tensors(peek(plant(args)))
    size = 2 if layout == "torch_dist" else 4
    assert [(t.name, t.shape, t.bytes) for t in tensors] == [("embedding.word_embeddings.weight", (8, 4), 32 * size)]


@pytest.mark.parametrize("layout", ["common_pt"], indirect=True)
def test_weights_are_not_read(plant: Plant, args: argparse.Namespace) -> None:
    """Whatever the tensor's bytes are, the peek is the same."""
    directory = plant(args)
    for shard in directory.glob("*.distcp"):
        shard.write_bytes(b"?" * shard.stat().st_size)
    assert peek(directory).args == vars(args)


@pytest.fixture(scope="module")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> CheckpointPeek:
    """Written by megatron-core itself."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    from megatron.core.transformer.enums import AttnBackend

    directory = tmp_path_factory.mktemp("genuine") / "iter_0000003"
    directory.mkdir()
    weight = ShardedTensor.from_rank_offsets("embedding.word_embeddings.weight", torch.zeros(8, 4))
    args = argparse.Namespace(num_layers=2, attention_backend=AttnBackend.auto, params_dtype=torch.float32)
    with process_group_of_one(), saving_on_cpu():
        dist_checkpointing.save({"weight": weight, "args": args, "iteration": 3}, str(directory))
    return peek(directory)


def test_a_checkpoint_that_megatron_core_wrote(genuine: CheckpointPeek) -> None:
    from megatron.core.transformer.enums import AttnBackend

    assert genuine.format == "torch_dist"
    assert genuine.args == {"num_layers": 2, "attention_backend": AttnBackend.auto, "params_dtype": torch.float32}
    assert genuine.vocabulary_rows == 8
    assert not (genuine.path / "common.pt").exists()


def test_metadata_of_the_genuine_checkpoint_is_the_ordinary_unpicklers(genuine: CheckpointPeek) -> None:
    from model_providers.checkpoint.secure import read_dcp_metadata

    ordinary = pickle.loads((genuine.path / ".metadata").read_bytes())  # noqa: S301
    assert read_dcp_metadata(genuine.path).state_dict_metadata == ordinary.state_dict_metadata
    assert read_dcp_metadata(genuine.path).storage_data == ordinary.storage_data
