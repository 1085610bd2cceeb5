"""A tiny LLaVA with a byte-level tokenizer as a Megatron checkpoint, questions on pictures, and servers of both."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
ENGINE_FLAGS = ("--dtype", "fp32", "--kv-cache-gb", "0.05", "--threads", "1")
NUM_PICTURES = 6


@pytest.fixture(scope="session")
def vlm_of_hugging_face(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LLaVA with random weights, 16 tokens an image, every byte a token: what it says is nonsense, and always the
    same."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        CLIPImageProcessorPil,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )

    source = tmp_path_factory.mktemp("hf")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<image>", special=True), AddedToken("<|end|>", special=True)])
    tokenizer.save(str(source / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "chat_template": TEMPLATE}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(11)
    text = LlamaConfig(
        hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=258, max_position_embeddings=1024, bos_token_id=None, eos_token_id=257, pad_token_id=None,
    )  # fmt: skip
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4, image_size=28, patch_size=7
    )
    model = LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_index=256)
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter) * 0.25
            parameter.copy_(1 + noise if "norm" in name and name.endswith("weight") else noise)
    model.save_pretrained(source)
    CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}).save_pretrained(source)
    return source


@pytest.fixture(scope="session")
def vlm_checkpoint(vlm_of_hugging_face: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a Megatron checkpoint."""
    from model_providers.checkpoint.import_command import import_hf

    destination = tmp_path_factory.mktemp("megatron") / "tiny-llava"
    import_hf(vlm_of_hugging_face, destination)
    return destination


def picture(number: int) -> bytes:
    """A PNG of stripes that no other number has."""
    from PIL import Image

    image = Image.new("RGB", (40 + number, 30))
    image.putdata(
        [((x * (number + 3)) % 256, (y * 9) % 256, 40 * number) for y in range(30) for x in range(40 + number)]
    )
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="session")
def picture_questions(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Writes a JSONL file of so many rows: on a picture, on two, on none, options, chats, and texts to continue."""
    folder = tmp_path_factory.mktemp("questions")
    for number in range(NUM_PICTURES):
        (folder / f"{number}.png").write_bytes(picture(number))

    def write(count: int) -> Path:
        path = folder / f"{count}.jsonl"
        path.write_text("".join(json.dumps(_row(number)) + "\n" for number in range(count)))
        return path

    return write


def _row(number: int) -> dict[str, Any]:
    first, second = f"{number % NUM_PICTURES}.png", f"{(number + 1) % NUM_PICTURES}.png"
    words = f"Is thing {number} here?"
    row: dict[str, Any] = {"id": f"q{number}", "answer": "yes" if number % 2 else "no"}
    match number % 5:
        case 0:
            return row | {"question": words, "images": [first]}
        case 1:
            return row | {"question": f"First <image> then <image>. {words}", "images": [first, second]}
        case 2:
            return row | {"question": words, "images": [first], "choices": ["left", "right", "up"], "answer": 1}
        case 3:
            data = base64.b64encode(picture(number % NUM_PICTURES)).decode()
            url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
            content = [{"type": "text", "text": "Look:"}, url, {"type": "text", "text": words}]
            return row | {
                "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
            }
    return row | {"prompt": f"Number {number} is"}


@dataclass(frozen=True)
class RealServer:
    url: str

    def stats(self) -> dict[str, Any]:
        """The engine's counters."""
        with urllib.request.urlopen(f"{self.url}/server_info", timeout=30) as reply:
            stats: dict[str, Any] = json.load(reply)["stats"]
        return stats

    def num_ended(self) -> int:
        """Requests that the engine has finished or given up."""
        stats = self.stats()
        return int(stats["total_finished"]) + int(stats["total_aborted"])


@pytest.fixture(scope="session")
def serve_checkpoint(running_server: Callable[..., AbstractContextManager[str]]) -> Callable[..., Any]:
    """Context manager: a checkpoint and flags to a ready server."""

    @contextmanager
    def serve(checkpoint: Path, *flags: str) -> Iterator[RealServer]:
        with running_server(checkpoint, *flags) as url:
            yield RealServer(url)

    return serve


@pytest.fixture(scope="session")
def vlm_server(vlm_checkpoint: Path, serve_checkpoint: Callable[..., Any]) -> Iterator[RealServer]:
    """`megaserve serve` with the tiny LLaVA in fp32, ready."""
    with serve_checkpoint(vlm_checkpoint, *ENGINE_FLAGS) as server:
        yield server


@pytest.fixture
def run_evaluation() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command, under torchrun where `ranks` says how many."""

    def run(*arguments: str, ranks: int = 0) -> subprocess.CompletedProcess[str]:
        launcher = ("-m", "torch.distributed.run", "--nproc-per-node", str(ranks)) if ranks else ()
        command = [sys.executable, *launcher, "-m", "evaluation", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)

    return run


@pytest.fixture
def engine_flags() -> tuple[str, ...]:
    return ENGINE_FLAGS
