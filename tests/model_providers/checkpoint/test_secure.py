"""Reading executes nothing: every layout, with objects that would run code under an ordinary unpickler."""

from __future__ import annotations

import argparse
import collections
import io
import pickle
import pickletools
import signal
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy
import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from model_providers.checkpoint.peek import peek
from model_providers.checkpoint.secure import is_inert, load_byte_object, load_weights_only, read_dcp_metadata
from model_providers.errors import CheckpointError


def saved(value: Any) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return stream


class Unknown:
    """A class that no reader admits."""

    def __init__(self) -> None:
        self.depth = 3


def test_the_hostile_objects_are_hostile(hostile: Any, marker: Path) -> None:
    pickle.loads(pickle.dumps(hostile))  # noqa: S301
    assert marker.exists()


def test_hostile_args_run_nothing(plant: Callable[..., Path], hostile: Any, marker: Path) -> None:
    directory = plant(argparse.Namespace(num_layers=2, payload=hostile))
    try:
        args = peek(directory).args
    except CheckpointError as error:  # names of the operating system's modules are refused whole
        assert "system" in str(error)
    else:
        assert args["num_layers"] == 2
        assert is_inert(args["payload"])
    assert not marker.exists()


def test_hostile_metadata_is_refused(tmp_path: Path, hostile: Any, marker: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(hostile))
    with pytest.raises(CheckpointError, match=r"\.metadata: .*refers to (builtins\.exec|posix\.system)"):
        peek(tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize("layout", ["torch_dist", "common_pt"], indirect=True)
def test_hostile_planner_data_in_otherwise_genuine_metadata(
    plant: Callable[..., Path], args: argparse.Namespace, hostile: Any, marker: Path
) -> None:
    file = plant(args) / ".metadata"
    metadata = pickle.loads(file.read_bytes())  # noqa: S301
    metadata.planner_data = {"x": hostile}
    file.write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="refers to"):
        peek(file.parent)
    assert not marker.exists()


def test_metadata_cannot_reach_attributes_through_getattr(tmp_path: Path) -> None:
    """With an unrestricted getattr, `getattr(function, "__globals__")` leads to every module."""
    payload = b"\x80\x04cbuiltins\ngetattr\n(ctorch.serialization\n_get_layout\nX\x0b\x00\x00\x00__globals__tR."
    pickletools.dis(payload, out=io.StringIO())  # it is well-formed
    (tmp_path / ".metadata").write_bytes(payload)
    with pytest.raises(CheckpointError, match="admitted on enumerations alone"):
        read_dcp_metadata(tmp_path)


def test_metadata_cannot_change_classes(tmp_path: Path) -> None:
    """BUILD with slot state sets attributes on whatever is on the stack, a class as well."""
    before = MetadataIndex.__init__
    payload = (
        b"\x80\x04ctorch.distributed.checkpoint.metadata\nMetadataIndex\n"
        b"(N}X\x08\x00\x00\x00__init__ctorch\nSize\nsX\x04\x00\x00\x00evilK\x01stb."
    )
    pickletools.dis(payload, out=io.StringIO())
    (tmp_path / ".metadata").write_bytes(payload)
    with pytest.raises(CheckpointError, match="changes the class MetadataIndex"):
        read_dcp_metadata(tmp_path)
    assert MetadataIndex.__init__ is before
    assert not hasattr(MetadataIndex, "evil")


def test_python_3_11_enumeration_members_in_metadata(tmp_path: Path) -> None:
    """That version pickles them as getattr(class, name)."""
    module = b"torch.distributed.checkpoint.metadata"
    (tmp_path / ".metadata").write_bytes(
        b"\x80\x04cbuiltins\ngetattr\n(c"
        + module
        + b"\n_MEM_FORMAT_ENCODING\nX\x17\x00\x00\x00TORCH_CONTIGUOUS_FORMATtR."
    )
    with pytest.raises(CheckpointError, match="holds no checkpoint metadata"):  # read, but it is only a member
        read_dcp_metadata(tmp_path)


def test_unknown_classes_become_inert_records() -> None:
    value = argparse.Namespace(
        record=Unknown(), kind=Unknown, function=torch.nn.functional.silu, stream=io.BytesIO(b"x"), array=numpy.zeros(2)
    )
    loaded = load_weights_only(saved({"args": value}))["args"]
    assert all(is_inert(item) for item in vars(loaded).values())
    assert loaded.record.origin.endswith(".Unknown")
    assert loaded.record.state == {"depth": 3}
    assert repr(loaded.function) == "<torch.nn.functional.silu, not loaded>"


def test_what_args_hold_is_read_as_itself() -> None:
    counts = collections.defaultdict(list, {"a": [1]})
    value = argparse.Namespace(
        dtype=torch.bfloat16,
        signal=signal.SIGTERM,
        path=Path("/a/b"),
        counts=counts,
        ordered=collections.OrderedDict(a=1),
    )
    loaded = load_weights_only(saved(value))
    assert loaded.dtype is torch.bfloat16
    assert loaded.signal is signal.SIGTERM
    assert loaded.path == PurePosixPath("/a/b")
    assert loaded.counts == {"a": [1]}
    assert type(loaded.counts) is dict


def test_megatron_enumerations_are_read_as_themselves() -> None:
    from megatron.core.transformer.enums import AttnBackend

    assert load_weights_only(saved([AttnBackend.flash])) == [AttnBackend.flash]


class NewerBackend:
    """Pickles as a member that this version's enumeration does not have."""

    def __reduce__(self) -> Any:
        from megatron.core.transformer.enums import AttnBackend

        return (AttnBackend, (99,))


def test_an_enumeration_value_of_another_version_is_a_record() -> None:
    (loaded,) = load_weights_only(saved([NewerBackend()]))
    assert is_inert(loaded)
    assert (loaded.origin, loaded.arguments) == ("megatron.core.transformer.enums.AttnBackend", (99,))


def test_the_allow_list_of_other_libraries_is_put_back() -> None:
    before = set(torch.serialization.get_safe_globals())
    torch.serialization.add_safe_globals([Unknown])
    try:
        assert is_inert(load_weights_only(saved(Unknown())))  # theirs does not count here
        assert Unknown in torch.serialization.get_safe_globals()
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(list(before))


@pytest.mark.parametrize("size", [0, 1, 100, 0.5, 0.99])
def test_truncated_files_are_named(tmp_path: Path, size: float) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.zeros(1000)}, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(size * len(data)) if size < 1 else int(size)])
    with pytest.raises(CheckpointError, match=r"x\.pt"):
        load_weights_only(path)


def test_byte_objects(tmp_path: Path, save_dcp: Callable[[dict[str, Any], Path], None]) -> None:
    save_dcp({"w": torch.ones(2), "state": 3}, tmp_path)
    metadata = read_dcp_metadata(tmp_path)
    assert isinstance(metadata, Metadata)
    assert load_byte_object(tmp_path, metadata, "state") == 3
    for missing in ("w", "other"):
        with pytest.raises(KeyError):
            load_byte_object(tmp_path, metadata, missing)
    metadata.storage_data[MetadataIndex("state")].relative_path = "../elsewhere"
    with pytest.raises(CheckpointError, match="outside the checkpoint directory"):
        load_byte_object(tmp_path, metadata, "state")
    metadata.storage_data[MetadataIndex("state")].relative_path = "__0_0.distcp"
    metadata.storage_data[MetadataIndex("state")].length = 10**9
    with pytest.raises(CheckpointError, match="cut short"):
        load_byte_object(tmp_path, metadata, "state")
