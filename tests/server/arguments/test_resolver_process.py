"""The resolver as the HTTP process runs it: exit statuses, clean standard output, errors that name the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.arguments.resolver import main
from server.config import ResolvedDocument

Plant = Callable[..., Path]


def run_process(*argv: str, out: Path | None = None) -> subprocess.CompletedProcess[str]:
    output = [] if out is None else ["--out", str(out)]
    command = [sys.executable, "-m", "server.arguments.resolver", *output, "--", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_json_alone_on_standard_output(plant: Plant) -> None:
    """In a fresh process, since what libraries print while they are imported must not get there."""
    done = run_process("--load", str(plant()), "--print-resolved-args=json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["kind"] == "gpt"
    assert "Warning" not in done.stderr


def test_a_start_writes_the_document_and_prints_tables_and_provenance(plant: Plant, tmp_path: Path) -> None:
    out = tmp_path / "document.json"
    done = run_process("--load", str(plant()), "--rotary-base", "7", out=out)
    assert (done.returncode, done.stdout) == (0, "")
    document = ResolvedDocument.read(out)
    assert document.values["rotary_base"] == 7
    lines = [line for line in done.stderr.splitlines() if line.startswith("[arg_provenance] ")]
    printed = {entry["arg"]: entry for entry in (json.loads(line.partition(" ")[2]) for line in lines)}
    assert set(printed) == {a.arg for a in document.arguments if a.source != "default"}
    assert printed["rotary_base"]["source"] == "command_line"
    assert "rotary_base ....." in done.stderr
    assert [path.name for path in tmp_path.glob(".*")] == []


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """main() in this process -> (status, standard output, standard error)."""

    def call(*argv: str, out: Path | None = None) -> tuple[int, str, str]:
        status = main([*([] if out is None else ["--out", str(out)]), "--", *argv])
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return call


def test_help(call: Any) -> None:
    status, out, _ = call("--help")
    assert status == 0
    assert "--load DIR" in out
    assert call("--help-all")[1].count("\n") > 1000


def test_the_three_parts_of_the_printed_tables(plant: Plant, call: Any) -> None:
    status, out, _ = call("--load", str(plant()), "--print-resolved-args", "--no-swiglu")
    assert status == 0
    assert "  swiglu .........................................." in out
    assert "Where values came from" in out
    assert "command line (overrides)" in out
    assert "model kind: gpt, because the checkpoint's args name no language_model_type" in out
    vlm = call("--load", str(plant("vlm", language_model_type="llama3_8b")), "--print-resolved-args")[1]
    assert "Where values of the image side came from" in vlm
    assert "model kind: vlm, because language_model_type is 'llama3_8b'" in vlm


def test_conflicts_are_all_printed_and_the_document_is_written(plant: Plant, call: Any, tmp_path: Path) -> None:
    out = tmp_path / "document.json"
    flags = ("--tensor-model-parallel-size", "4", "--num-experts", "8")
    status, stdout, error = call("--load", str(plant()), *flags, out=out)
    assert (status, stdout) == (3, "")
    lines = [line for line in error.splitlines() if line.startswith("conflict: ")]
    assert len(lines) == len(ResolvedDocument.read(out).conflicts) == 3
    assert all("to resolve: " in line for line in lines)


def test_a_start_without_a_tokenizer(plant: Plant, call: Any) -> None:
    load = plant()
    (load / "tokenizer.json").unlink()
    status, _, error = call("--load", str(load))
    assert status == 2
    assert error.splitlines()[-1].startswith("megaserve: error: no usable tokenizer found; tried ")
    assert error.splitlines()[-1].endswith("name one with --tokenizer-model")


def break_tracker(load: Path) -> str:
    (load / "latest_checkpointed_iteration.txt").write_text("seven")
    return "latest_checkpointed_iteration.txt"


def remove_iteration(load: Path) -> str:
    (load / "iter_0000007").rename(load / "iter_0000008")
    return "iter_0000007"


def rank_file(load: Path) -> Path:
    return load / "iter_0000007" / "mp_rank_00" / "model_optim_rng.pt"


def truncate(load: Path) -> str:
    file = rank_file(load)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return file.name


def empty(load: Path) -> str:
    rank_file(load).write_bytes(b"")
    return rank_file(load).name


def remove_file(load: Path) -> str:
    rank_file(load).unlink()
    return rank_file(load).name


def remove_everything(load: Path) -> str:
    load.rename(load.with_name("gone"))
    return load.name


def drop_permission(load: Path) -> str:
    rank_file(load).unlink()
    rank_file(load).mkdir()
    return rank_file(load).name


@pytest.mark.parametrize("flags", [(), ("--print-resolved-args",), ("--print-resolved-args=json",)])
@pytest.mark.parametrize(
    "damage", [break_tracker, remove_iteration, truncate, empty, remove_file, remove_everything, drop_permission]
)
def test_an_unreadable_checkpoint_is_an_error_and_never_a_gpt(
    plant: Plant, call: Any, damage: Callable[[Path], str], flags: tuple[str, ...], tmp_path: Path
) -> None:
    load = plant()
    name = damage(load)
    out = tmp_path / "document.json"
    status, stdout, error = call("--load", str(load), *flags, out=out)
    assert (status, stdout) == (2, "")
    (line,) = error.strip().splitlines()
    assert line.startswith("megaserve: error: ")
    assert name in line
    assert not out.exists()


def test_a_checkpoint_without_args(plant_without_args: Path, call: Any) -> None:
    status, stdout, error = call("--load", str(plant_without_args), "--print-resolved-args=json")
    assert (status, stdout) == (2, "")
    assert "model_optim_rng.pt: holds no args" in error
    assert "--num-layers, --hidden-size, --num-attention-heads" in error


def test_hostile_args_run_nothing(plant: Plant, call: Any, tmp_path: Path) -> None:
    marker = tmp_path / "code_ran"

    class Hostile:
        def __reduce__(self) -> Any:
            return (os.system, (f"touch {marker}",))

    import torch

    load = plant()
    torch.save({"args": Hostile()}, rank_file(load))
    status, _, error = call("--load", str(load), "--print-resolved-args")
    assert status == 2
    assert "model_optim_rng.pt" in error
    assert not marker.exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "--load DIR is missing"),
        (("--load", "x", "--port", "-1"), "--port must be at least 0"),
        (("--load", "x", "--block-size", "0"), "--block-size must be at least 1, not 0"),
        (("--load", "x", "--tensor-model-parallel-size", "0"), "--tensor-model-parallel-size must be at least 1"),
        (("--load", "x", "--kv-cache-memory-fraction", "1.5"), "must be more than 0 and at most 1"),
        (("--load", "x", "--swiglo"), "did you mean --swiglu"),
        (("--load", "x", "--config", "/no/such.yaml"), "/no/such.yaml: cannot be read"),
    ],
)
def test_mistakes_are_one_line(call: Any, argv: tuple[str, ...], message: str) -> None:
    status, stdout, error = call(*argv)
    assert (status, stdout) == (2, "")
    (line,) = error.strip().splitlines()
    assert message in line


def test_a_document_that_cannot_be_written(plant: Plant, call: Any, tmp_path: Path) -> None:
    status, _, error = call("--load", str(plant()), out=tmp_path / "no" / "where.json")
    assert status == 2
    assert "where.json: cannot be written" in error


def test_its_own_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--output", "x", "--"]) == 2
    assert "usage:" in capfd.readouterr().err


def test_no_gpu_is_touched_and_no_process_group_made(plant: Plant, call: Any) -> None:
    import torch

    assert call("--load", str(plant()), "--print-resolved-args=json")[0] == 0
    assert not torch.cuda.is_initialized()
    assert not torch.distributed.is_initialized()
