"""With guesses every request gets the tokens, log-probabilities and end that it gets without, to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from server.ipc import EngineStats
from server.request import RequestOutput, TokenLogprob


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


def run_ranks(directory: Path, checkpoint: Path, *cases: tuple[str, ...], ranks: int) -> list[Outcome]:
    """cases: flags of one document each. All have blocks for a part of what runs, and a small budget of tokens."""
    paths = []
    for index, case in enumerate(cases):
        path = directory / f"document{index}.json"
        flags = ["--load", str(checkpoint), "--tensor-model-parallel-size", str(ranks), "--max-batched-tokens", "70"]
        run("-m", "server.arguments.resolver", "--out", str(path), "--", *flags, "--speculative-tokens", "6", *case)
        paths.append(str(path))
    result = directory / "result.json"
    script = str(Path(__file__).with_name("speculation_rank.py"))
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    run(*launcher, script, ",".join(paths), str(result))
    return msgspec.json.decode(result.read_bytes(), type=list[Outcome])


def check(outcome: Outcome) -> None:
    assert outcome.guessing.keys() == outcome.plain.keys()
    assert len(outcome.plain) == 41
    for name, plain in outcome.plain.items():
        assert all(len(output.token_ids) == 1 for output in plain)
        assert joined(outcome.guessing[name]) == joined(plain), name
    stats = outcome.stats
    assert stats.total_preemptions > 0
    assert stats.total_cached_tokens > 0
    assert stats.total_accepted_tokens > 100
    assert stats.total_draft_tokens > stats.total_accepted_tokens
    assert stats.num_free_blocks == stats.num_blocks
    lasts = [outputs[-1] for outputs in outcome.guessing.values()]
    for reason in ("stop", "length"):
        assert any(last.finish_reason == reason and len(last.token_ids) > 1 for last in lasts), reason
    runs = [output for outputs in outcome.guessing.values() for output in outputs if len(output.token_ids) > 1]
    assert any(output.logprobs for output in runs)


@pytest.mark.parametrize(("ranks", "kv_cache_gb"), [(1, "0.0006"), (2, "0.0003")])
def test_tokens_and_log_probabilities_are_the_same(
    padded_checkpoint: Path, tmp_path: Path, ranks: int, kv_cache_gb: str
) -> None:
    half = str(float(kv_cache_gb) / 2)  # numbers of half the size: as many blocks
    cases = (("--dtype", "fp32", "--kv-cache-gb", kv_cache_gb), ("--dtype", "bf16", "--kv-cache-gb", half))
    outcomes = run_ranks(tmp_path, padded_checkpoint, *cases, ranks=ranks)
    assert len(outcomes) == 2
    for outcome in outcomes:
        check(outcome)
