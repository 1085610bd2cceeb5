"""`megaserve import-hf`: what it writes beside the weights, what it refuses, and that failing leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedTokenizerFast

from model_providers.checkpoint.import_command import import_hf, main
from model_providers.checkpoint.peek import peek

_COMMAND = [sys.executable, "-m", "model_providers.checkpoint.import_command"]


def _write(config: Any, directory: Path) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A one-layer Llama with a tokenizer of 5 tokens, fewer than the 31 rows of its embedding."""
    config = LlamaConfig(
        num_hidden_layers=1, vocab_size=31, hidden_size=64, intermediate_size=300, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    directory = _write(config, tmp_path / "hf")
    tokenizer = Tokenizer(
        WordLevel({word: i for i, word in enumerate(["<s>", "</s>", "a", "b", "c"])}, unk_token="<s>")
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", chat_template="{{ messages }}")
    fast.save_pretrained(directory)
    return directory


def _listing(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_writes_a_checkpoint_with_its_tokenizer(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    destination = tmp_path / "out" / "megatron"
    assert main([str(source), str(destination)]) == 0
    assert capsys.readouterr().out == f"wrote {destination}\n"
    assert _listing(destination) == {"latest_checkpointed_iteration.txt", "release", "tokenizer"}
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= _listing(destination / "tokenizer")
    args = peek(destination).args
    assert (args["vocab_size"], args["padded_vocab_size"]) == (5, 31)
    assert (args["tokenizer_type"], args["tokenizer_model"]) == ("HuggingFaceTokenizer", None)


def test_tokenizer_json_is_made_from_a_vocabulary(tmp_path: Path) -> None:
    source = _write(GPT2Config(n_layer=1, n_embd=32, n_head=2, n_positions=32, vocab_size=5), tmp_path / "hf")
    (source / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}')
    (source / "merges.txt").write_text("#version: 0.2\na b\n")
    assert import_hf(source, tmp_path / "out")
    assert Tokenizer.from_file(str(tmp_path / "out" / "tokenizer" / "tokenizer.json")).encode("aba").ids == [2, 0]


def test_says_when_there_is_no_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = _write(GPT2Config(n_layer=1, n_embd=32, n_head=2, n_positions=32, vocab_size=5), tmp_path / "hf")
    assert main([str(source), str(tmp_path / "out")]) == 0
    assert "--tokenizer-model" in capsys.readouterr().err


def test_existing_destinations(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    destination = tmp_path / "out"
    destination.mkdir()
    assert main([str(source), str(destination)]) == 0  # an empty directory is no obstacle
    assert main([str(source), str(destination)]) == 2
    assert capsys.readouterr().err == f"megaserve import-hf: {destination}: exists already; --force replaces it\n"
    assert peek(destination).args["params_dtype"] == torch.float32
    assert main([str(source), str(destination), "--force", "--dtype", "bf16"]) == 0
    assert peek(destination).args["params_dtype"] == torch.bfloat16
    assert _listing(tmp_path) == {"hf", "out"}


def test_force_deletes_nothing_but_a_checkpoint(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "precious").touch()
    assert main([str(source), str(tmp_path / "letters"), "--force"]) == 2
    assert "not a Megatron checkpoint" in capsys.readouterr().err
    assert _listing(tmp_path / "letters") == {"precious"}
    (source.parent / "latest_checkpointed_iteration.txt").touch()
    assert main([str(source), str(source.parent), "--force"]) == 2
    assert "holds the source" in capsys.readouterr().err
    assert (source / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"model_type": "gemma"}', "model_type: 'gemma' cannot be imported"),
        ("{", "config.json"),
        (None, "config.json"),
    ],
)
def test_refused_sources(config: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hf").mkdir()
    if config is not None:
        (tmp_path / "hf" / "config.json").write_text(config)
    assert main([str(tmp_path / "hf"), str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_missing_gguf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "model.gguf"), str(tmp_path / "out")]) == 2
    assert "model.gguf: does not exist" in capsys.readouterr().err


def test_damaged_gguf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    assert main([str(tmp_path / "model.gguf"), str(tmp_path / "out")]) == 2
    assert "model.gguf: transformers cannot read" in capsys.readouterr().err


def test_unwritable_destination(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(source), str(source / "config.json" / "out")]) == 2
    assert "File exists" in capsys.readouterr().err


def test_full_disk(source: Path, tmp_path: Path) -> None:
    """A limit on the size of a file stands for it: both fail a write in the middle."""
    command = ["bash", "-c", 'ulimit -f 100 && exec "$@"', "-", *_COMMAND, source, tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "could not be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert _listing(tmp_path) == {"hf"}


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_while_writing(ending: signal.Signals, source: Path, tmp_path: Path) -> None:
    process = subprocess.Popen([*_COMMAND, source, tmp_path / "out"], stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob(".out.partial-*")):
        assert process.poll() is None
        time.sleep(0.001)
    os.kill(process.pid, ending)
    _, errors = process.communicate()
    assert "Traceback" not in errors
    assert not (tmp_path / "out").exists()
    if ending == signal.SIGINT:
        assert process.returncode == 130
        assert _listing(tmp_path) == {"hf"}
    import_hf(source, tmp_path / "out")  # what a killed process left is in nobody's way
    assert peek(tmp_path / "out").vocabulary_rows == 31
