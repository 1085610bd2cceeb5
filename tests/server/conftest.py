"""A tiny tokenizer, a document that names it, and the HTTP process running on the stub engine."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from server.config import CheckpointInfo, EngineConfig, ResolvedArgument, ResolvedDocument, ServerConfig

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if false %}<tool_call>{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE tokenizer of 400 ids with special tokens, one added token and a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=399,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = "hello world the quick brown fox jumps over the lazy dog user assistant system stop answering now please"
    tokenizer.train_from_iterator([f"{words} {word * 2}" for word in words.split()] * 3, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
    directory = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@pytest.fixture(scope="session")
def make_document(tokenizer_directory: Path) -> Callable[..., ResolvedDocument]:
    """A document as the resolver would write it, with some values replaced."""

    def make(kind: Literal["gpt", "vlm"] = "gpt", **changes: Any) -> ResolvedDocument:
        values = dataclasses.asdict(ServerConfig()) | dataclasses.asdict(EngineConfig(threads=1))
        values |= {"load": "/checkpoints/tiny", "tensor_model_parallel_size": 1}
        values |= {"tokenizer_model": str(tokenizer_directory)} | changes
        arguments = [ResolvedArgument(arg=name, value=value, source="default") for name, value in values.items()]
        checkpoint = CheckpointInfo("/checkpoints/tiny/iter_0000001", "torch_dist", 1)
        return ResolvedDocument(
            kind=kind, reasons=["no language_model_type"], arguments=arguments, conflicts=[], checkpoint=checkpoint
        )

    return make


@dataclass
class StubServer:
    """A running HTTP process. log: what the stub engine was told."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    def engine_log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def wait_for_log(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first entry that is wanted; fails when it does not come."""
        return wait_for(lambda: next((entry for entry in self.engine_log() if wanted(entry)), None))

    def wait_until_ready(self) -> None:
        wait_for(lambda: self.readiness()[0] == 200)

    def readiness(self) -> tuple[int, dict[str, Any]]:
        reply = httpx.get(f"{self.url}/health/ready", timeout=60)
        return reply.status_code, reply.json()

    def children(self) -> list[int]:
        """Process ids of all living descendants."""
        return [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]


def wait_for(probe: Callable[[], Any], seconds: float = 60) -> Any:
    """The probe's first true value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := probe():
            return value
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


@pytest.fixture(scope="session")
def wait_for_gone() -> Callable[[list[int]], None]:
    """Waits until none of these processes lives; fails, and names them, when some stay for half a minute."""

    def wait(pids: list[int]) -> None:
        deadline = time.monotonic() + 30
        while left := [pid for pid in pids if _is_alive(pid)]:
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(0.05)

    return wait


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="session")
def start_stub_server(
    make_document: Callable[..., ResolvedDocument], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """A context manager that starts an HTTP process on the stub engine and kills it at the end."""
    script = Path(__file__).with_name("stub_serve.py")

    @contextmanager
    def start(*extra: str, wait: bool = True, **changes: Any) -> Iterator[StubServer]:
        directory = tmp_path_factory.mktemp("stub")
        document_file, log = directory / "document.json", directory / "engine.log"
        document_file.write_bytes(make_document(**changes).to_json())
        command = [sys.executable, str(script), str(document_file), str(log), *extra]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(directory)},
        )
        assert process.stdout is not None
        try:
            server = StubServer(process, process.stdout.readline().strip(), log)
            if wait:
                server.wait_until_ready()
            yield server
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    return start


@pytest.fixture(scope="session")
def stub_server(start_stub_server: Callable[..., Any]) -> Iterator[StubServer]:
    """One server for all tests that leave it as they found it."""
    with start_stub_server(max_choices=8, max_batch_items=16, max_queued_requests=64, max_body_mb=1.0) as server:
        yield server


@pytest.fixture
def client(stub_server: StubServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stub_server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def byte_level_checkpoint(tokenizer_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama over the tokenizer above as a Megatron checkpoint; the last 8 of its 408 rows are padding."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from model_providers.checkpoint.import_command import import_hf

    directory = tmp_path_factory.mktemp("byte_level")
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=408,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    for file in tokenizer_directory.iterdir():
        shutil.copy(file, directory)
    import_hf(directory, directory / "megatron")
    return directory / "megatron"
