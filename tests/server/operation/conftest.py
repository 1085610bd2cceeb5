"""Servers set up as an operator would: with keys, limits, and a real engine over a tiny LLaVA."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

CLIENT_KEY, OTHER_CLIENT_KEY, ADMIN_KEY = "client-key-1", "client-key-2", "admin-key-1"
IMAGE_TOKENS = 16


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="session")
def keys() -> tuple[str, str, str]:
    """Of two clients and of an administrator."""
    return CLIENT_KEY, OTHER_CLIENT_KEY, ADMIN_KEY


@pytest.fixture(scope="session")
def guarded_server(start_stub_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A stub server with everything on that guards it, behind a proxy's path."""
    directory = tmp_path_factory.mktemp("guarded")
    (directory / "keys").write_text(f"\n{OTHER_CLIENT_KEY}\n")
    with start_stub_server(
        wait=False,
        api_key=[CLIENT_KEY],
        api_key_file=str(directory / "keys"),
        admin_api_key=[ADMIN_KEY],
        allowed_origins=["https://chat.example"],
        root_path="/model",
        max_headers=20,
        max_header_kb=4.0,
        profile_dir=str(directory / "profiles"),
        progress_timeout=4.0,
        load="/checkpoints/tiny",
    ) as server:
        server.wait_until_ready()
        yield server


@pytest.fixture
def admin(guarded_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded_server.url, timeout=60, headers=bearer(ADMIN_KEY)) as client:
        yield client


@pytest.fixture(scope="session")
def llava_checkpoint(tokenizer_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random LLaVA over the tests' byte-level tokenizer, with an <image> token; 28x28 pixels in 16 patches."""
    import torch
    from tokenizers import AddedToken, Tokenizer
    from transformers import (
        CLIPImageProcessorPil,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )

    from model_providers.checkpoint.import_command import import_hf

    directory = tmp_path_factory.mktemp("llava") / "hf"
    torch.manual_seed(2)
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, image_size=28, patch_size=7
    )
    text = LlamaConfig(
        hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=401, max_position_embeddings=512,
    )  # fmt: skip
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=400)
    LlavaForConditionalGeneration(config).save_pretrained(directory)
    CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}).save_pretrained(directory)
    shutil.copy(tokenizer_directory / "tokenizer_config.json", directory)
    tokenizer = Tokenizer.from_file(str(tokenizer_directory / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken("<image>", special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    import_hf(directory, directory.parent / "megatron")
    return directory.parent / "megatron"


class RealServer:
    """`megaserve serve` on two ranks, with an administrator's client."""

    def __init__(self, url: str, profiles: Path, log: Path) -> None:
        self.url = url
        self.profiles = profiles
        self.log = log
        self.client = httpx.Client(base_url=url, timeout=60, headers=bearer(ADMIN_KEY))

    def wait(self, probe: Callable[[], Any]) -> Any:
        from time import monotonic, sleep

        deadline = monotonic() + 200
        while not (value := probe()):
            assert monotonic() < deadline, "it did not happen in time"
            sleep(0.05)
        return value

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self.client.get("/load").json()["stats"]
        return stats

    def generate(self, text: str = "hello world", **more: Any) -> httpx.Response:
        params = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True} | more.pop("sampling_params", {})
        return self.client.post("/generate", json={"text": text, "sampling_params": params, **more})

    def assert_well(self) -> None:
        """A normal request is answered as at the start, and when it is idle every block is free."""
        reply = self.generate()
        assert reply.status_code == 200, reply.text
        assert reply.json()["output_ids"] == self.usual
        self.wait(lambda: self.stats()["num_free_blocks"] == self.stats()["num_blocks"])

    def learn(self) -> None:
        self.usual = self.generate().json()["output_ids"]


@pytest.fixture(scope="session")
def real_server(llava_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    profiles = tmp_path_factory.mktemp("profiles")
    command = [sys.executable, "-m", "server", "--load", str(llava_checkpoint), "--port", "0", "--dtype", "fp32"]
    command += ["--tensor-model-parallel-size", "2", "--kv-cache-gb", "0.02", "--threads", "1"]
    command += [
        "--admin-api-key",
        ADMIN_KEY,
        "--profile-dir",
        str(profiles),
        "--max-body-mb",
        "8",
        "--max-batched-tokens",
        "16",
    ]
    log = profiles / "stderr"
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    try:
        server = RealServer(process.stdout.readline().split("listening on ")[1].strip(), profiles, log)
        with server.client:
            server.wait(lambda: process.poll() is not None or server.client.get("/health/ready").is_success)
            assert process.poll() is None
            server.learn()
            yield server
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
