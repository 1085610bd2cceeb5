"""What every test shares: no model hub, and SmolLM2 as a Megatron checkpoint and in Hugging Face's implementation."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from model_providers.backends.varlen_attention import VarlenFunction

# Set before any test module imports torch or transformers; processes that tests start inherit them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[str]]:
    """`with running_server(checkpoint, *flags) as url`: the whole server, ready; it is stopped in order at the end."""

    @contextmanager
    def run(checkpoint: Path, *flags: str) -> Iterator[str]:
        command = [sys.executable, "-m", "server", "--load", str(checkpoint), "--port", "0", *flags]
        log = tmp_path_factory.mktemp("server") / "log"
        with log.open("w") as stderr:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert "listening on " in line, log.read_text()[-3000:]
            url = line.split("listening on ")[1].strip()
            deadline = time.monotonic() + 200
            while not _is_ready(url):
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()

    return run


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=60):
            return True
    except (urllib.error.URLError, OSError):  # 503 while the ranks load
        return False


@pytest.fixture(scope="session")
def smollm2_checkpoint() -> Path:
    """SmolLM2-135M-Instruct as a Megatron torch_dist checkpoint (fp32), built at first use on this machine."""
    from model_providers.checkpoint.smollm2 import ensure_smollm2

    return ensure_smollm2()


@pytest.fixture(scope="session")
def smollm2_hf(smollm2_checkpoint: Path) -> PreTrainedModel:
    """The same weights in Hugging Face's implementation, fp32, in evaluation mode: the slow truth."""
    import torch
    from transformers import AutoModelForCausalLM

    from model_providers.checkpoint.smollm2 import smollm2_hf_directory

    return AutoModelForCausalLM.from_pretrained(smollm2_hf_directory(), dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def padded_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    """A tiny random Llama in Hugging Face's implementation, and the directory it was saved to with a tokenizer.

    131 words; row 131 is padding, and its logit beats every real one. Heads (8, 4 of KV) divide among 2 and 4 ranks.
    """
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM

    directory = tmp_path_factory.mktemp("padded")
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=132,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight[-1] = 50 * model.lm_head.weight[:-1].mean(0)
        model.lm_head.weight[-1, 0] = 40.0
    model.save_pretrained(directory)
    tokenizer = Tokenizer(WordLevel({f"w{index}": index for index in range(131)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    return model, directory


@pytest.fixture(scope="session")
def padded_checkpoint(padded_model: tuple[PreTrainedModel, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a Megatron checkpoint."""
    from model_providers.checkpoint.import_command import import_hf

    destination = tmp_path_factory.mktemp("megatron") / "padded"
    import_hf(padded_model[1], destination)
    return destination


@pytest.fixture(scope="session")
def reference_varlen() -> VarlenFunction:
    """What `torch.nn.attention.varlen.varlen_attn` is documented to compute, on any device: sequence by sequence.

    Of what it allows, only what our backend may ask for: causal, over block tables, without splits.
    """
    import torch
    from torch import Tensor
    from torch.nn.functional import scaled_dot_product_attention

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float,
        window_size: tuple[int, int],
        enable_gqa: bool,
        seqused_k: Tensor,
        block_table: Tensor,
        num_splits: int,
    ) -> Tensor:
        assert (window_size, num_splits) == ((-1, 0), 1)
        assert enable_gqa or query.shape[1] == key.shape[2]
        assert {t.dtype for t in (cu_seq_q, cu_seq_k, seqused_k, block_table)} == {torch.int32}
        assert len(cu_seq_q) == len(cu_seq_k) == len(seqused_k) + 1 == len(block_table) + 1
        assert torch.equal(cu_seq_k.diff(), seqused_k)
        assert cu_seq_q[-1] == len(query)
        out = torch.empty_like(query)
        for begin, end, length, table in zip(cu_seq_q, cu_seq_q[1:], seqused_k.tolist(), block_table, strict=False):
            num_queries = int(end - begin)
            assert 0 < num_queries <= max_q
            assert num_queries <= length <= max_k
            keys, values = (part[table.long()].flatten(0, 1)[:length].transpose(0, 1) for part in (key, value))
            seen = torch.ones(num_queries, length, dtype=torch.bool).tril(length - num_queries)
            out[begin:end] = scaled_dot_product_attention(
                query[begin:end].transpose(0, 1)[None],
                keys[None],
                values[None],
                attn_mask=seen,
                scale=scale,
                enable_gqa=enable_gqa,
            )[0].transpose(0, 1)
        return out

    return attend
