"""With guesses every request gets the tokens, log-probabilities and end that it gets without, to the last bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from server.ipc import EngineStats
from server.request import RequestOutput, TokenLogprob

_NUM_BLOCKS = 50


class Outcome(msgspec.Struct):
    plain: dict[str, list[RequestOutput]]
    guessing: dict[str, list[RequestOutput]]
    stats: EngineStats


class Answer(msgspec.Struct):
    """A request's outputs, joined."""

    token_ids: list[int]
    logprobs: list[TokenLogprob]
    prompt_logprobs: list[TokenLogprob | None] | None
    finish_reason: str | None
    stop_token_id: int | None


def joined(outputs: list[RequestOutput]) -> Answer:
    assert all(output.error is None for output in outputs)
    assert all(output.finish_reason is None for output in outputs[:-1])
    return Answer(
        token_ids=[token for output in outputs for token in output.token_ids],
        logprobs=[entry for output in outputs for entry in output.logprobs or []],
        prompt_logprobs=outputs[0].prompt_logprobs,
        finish_reason=outputs[-1].finish_reason,
        stop_token_id=outputs[-1].stop_token_id,
    )


def run(*arguments: str) -> None:
    # More threads than one per process are asked for by the documents.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=280, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def looping_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama that hears little of what lies back, so that it soon says again what it said before."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM

    from model_providers.checkpoint.import_command import import_hf

    directory = tmp_path_factory.mktemp("looping")
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=132,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight *= 0.01
    model.save_pretrained(directory)
    Tokenizer(WordLevel({f"w{i}": i for i in range(132)}, unk_token="w0")).save(str(directory / "tokenizer.json"))
    import_hf(directory, directory / "megatron")
    return directory / "megatron"


def run_ranks(directory: Path, checkpoint: Path, ranks: int) -> list[Outcome]:
    """In fp32 and bf16. Blocks hold a part of what runs at once, and a step takes few tokens."""
    resolved = directory / "resolved.json"
    flags = ["--tensor-model-parallel-size", str(ranks), "--max-batched-tokens", "70", "--speculative-tokens", "6"]
    run("-m", "server.arguments.resolver", "--out", str(resolved), "--", "--load", str(checkpoint), *flags)
    paths = []
    for dtype, bytes_per_block in (("fp32", 8192), ("bf16", 4096)):
        changes = {"dtype": dtype, "threads": 1, "kv_cache_gb": _NUM_BLOCKS * bytes_per_block / ranks / 2**30}
        document = json.loads(resolved.read_text())
        for argument in document["arguments"]:
            argument["value"] = changes.get(argument["arg"], argument["value"])
        paths.append(directory / f"{dtype}.json")
        paths[-1].write_text(json.dumps(document))
    result = directory / "result.json"
    script = str(Path(__file__).with_name("speculation_rank.py"))
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    run(*launcher, script, ",".join(map(str, paths)), str(result))
    return msgspec.json.decode(result.read_bytes(), type=list[Outcome])


def check(outcome: Outcome) -> None:
    assert outcome.guessing.keys() == outcome.plain.keys()
    assert len(outcome.plain) > 35  # those that were not aborted, and continued ones
    for name, plain in outcome.plain.items():
        assert all(len(output.token_ids) == 1 for output in plain)
        assert joined(outcome.guessing[name]) == joined(plain), name
    stats = outcome.stats
    assert stats.total_preemptions > 0
    assert stats.total_cached_tokens > 0
    assert stats.total_accepted_tokens > 100
    assert stats.total_draft_tokens > stats.total_accepted_tokens
    assert stats.num_free_blocks == stats.num_blocks == _NUM_BLOCKS
    lasts = [outputs[-1] for outputs in outcome.guessing.values()]
    for reason in ("stop", "length"):
        assert any(last.finish_reason == reason and len(last.token_ids) > 1 for last in lasts), reason
    runs = [output for outputs in outcome.guessing.values() for output in outputs if len(output.token_ids) > 1]
    assert any(output.logprobs for output in runs)


@pytest.mark.parametrize("ranks", [1, 2])
def test_tokens_and_log_probabilities_are_the_same(looping_checkpoint: Path, tmp_path: Path, ranks: int) -> None:
    outcomes = run_ranks(tmp_path, looping_checkpoint, ranks)
    assert len(outcomes) == 2
    for outcome in outcomes:
        check(outcome)
