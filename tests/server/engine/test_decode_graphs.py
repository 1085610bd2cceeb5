"""Decode by recorded steps gives the bits of decode without them: buffers, filling up, and the choice of steps.

Recording itself needs a GPU. Here a step is recorded by remembering what to call, and replayed by calling it on the
buffers as they are by then, with the result in the same memory each time: what a CUDA graph does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model_providers.backends.kv_cache import KVCache
from model_providers.backends.varlen_attention import VarlenAttention, VarlenFunction
from model_providers.checkpoint.single_process import process_group_of_one
from server.arguments.resolver import main as resolve
from server.config import ResolvedDocument
from server.engine.block_pool import BlockPool
from server.engine.build import BuiltRank, build_rank
from server.engine.cuda_graphs import Replay, collectives_can_be_recorded
from server.engine.decode_graphs import DecodeGraphs, DecodeShape
from server.engine.engine import Engine
from server.engine.grammar_admission import GrammarAdmission
from server.engine.input_transfer import PackedTransfer
from server.engine.model_runner import ModelRunner
from server.engine.sampler import Sampler
from server.engine.scheduler import Scheduler, SchedulerLimits
from server.engine.sequence import SampledToken, Sequence
from server.request import EngineRequest, SamplingParams

NUM_BLOCKS, BLOCK, MAX_MODEL_LEN, MOST = 60, 8, 128, 6


class Recorder:
    """replayed: how many rows each replay computed."""

    def __init__(self) -> None:
        self.recorded: list[int] = []
        self.replayed: list[int] = []

    def record(self, function: Callable[[], Tensor]) -> Replay:
        out = function().clone()  # outside inference mode, so that it can be written again
        self.recorded.append(len(out))

        def replay() -> Tensor:
            self.replayed.append(len(out))
            return out.copy_(function())

        return replay


class RecordingSampler(Sampler):
    def __init__(self) -> None:
        super().__init__(None)
        self.rows: dict[str, list[Tensor]] = {}

    def sample(self, logits: Tensor, sequences: Items[Sequence]) -> list[SampledToken]:
        for row, sequence in enumerate(sequences):
            self.rows.setdefault(sequence.request_id, []).append(logits[row].clone())
        return super().sample(logits, sequences)


@dataclass(frozen=True)
class Run:
    """logits: by request, (tokens, vocabulary). cache: with one block more than sequences were given."""

    logits: dict[str, Tensor]
    cache: KVCache


@pytest.fixture(scope="module")
def built(padded_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltRank]:
    document = tmp_path_factory.mktemp("document") / "document.json"
    flags = ["--load", str(padded_checkpoint), "--dtype", "fp32", "--kv-cache-gb", "0.01", "--threads", "1"]
    assert resolve(["--out", str(document), "--", *flags]) == 0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with process_group_of_one():
        yield build_rank(ResolvedDocument.read(document))
    torch.set_num_threads(threads)


def run(built: BuiltRank, varlen: VarlenFunction, requests: list[EngineRequest], recorder: Recorder | None) -> Run:
    model, attention = built.runner.model, VarlenAttention(varlen)
    cache = KVCache(
        num_layers=model.config.num_layers,
        num_blocks=NUM_BLOCKS + 1,
        block_size=BLOCK,
        num_kv_heads=model.num_kv_heads_per_rank,
        head_dim=model.config.kv_channels,
        dtype=torch.float32,
        device=torch.device("cpu"),
        layout=attention.cache_layout,
    )
    graphs = None
    if recorder is not None:
        graphs = DecodeGraphs(
            lambda step: model.forward_packed(step.token_ids, step.metadata, cache, attention),
            recorder,
            PackedTransfer(cache.device),
            DecodeShape(batch_sizes=(1, 2, 4, MOST), block_size=BLOCK, table_width=16, spare_block=NUM_BLOCKS),
        )
    runner = ModelRunner(
        model,
        cache,
        attention,
        vocab_size=built.limits.vocab_size,
        device=cache.device,
        world_size=1,
        plan_group=None,
        graphs=graphs,
    )
    limits = SchedulerLimits(
        max_batched_tokens=40,
        max_running_requests=MOST,
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK,
        prefix_caching=True,
    )
    engine = Engine(runner, Scheduler(limits, BlockPool(NUM_BLOCKS)), GrammarAdmission(None))
    engine._sampler = sampler = RecordingSampler()
    runner.record_graphs()
    engine.add(requests)
    while engine.has_work:
        assert all(output.error is None for output in engine.step())
    return Run({name: torch.stack(rows) for name, rows in sampler.rows.items()}, cache)


def request(name: int, num_tokens: int, **params: Any) -> EngineRequest:
    generator = torch.Generator().manual_seed(name)
    prompt = torch.randint(0, 131, (num_tokens,), generator=generator).tolist()
    return EngineRequest(
        request_id=str(name), prompt_token_ids=prompt, params=SamplingParams(temperature=0.0, **params)
    )


def test_the_same_bits_in_every_batch_size(built: BuiltRank, reference_varlen: VarlenFunction) -> None:
    # Fewer and fewer run towards the end, one up to the very last position.
    lengths = [(3, 9), (17, 14), (40, 20), (70, 6), (8, 26), (60, MAX_MODEL_LEN - 60), (5, 8), (33, 11)]
    requests = [request(name, prompt, max_new_tokens=new) for name, (prompt, new) in enumerate(lengths)]
    recorder = Recorder()
    expected = run(built, reference_varlen, requests, None)
    actual = run(built, reference_varlen, requests, recorder)
    assert recorder.recorded == [MOST, 4, 2, 1]
    assert set(recorder.replayed) == {1, 2, 4, MOST}
    assert [len(rows) for rows in expected.logits.values()] == [len(rows) for rows in actual.logits.values()]
    for name, logits in expected.logits.items():
        assert torch.isfinite(logits).all()
        assert torch.equal(actual.logits[name], logits), name
    for mine, theirs in zip(
        (*actual.cache.keys, *actual.cache.values), (*expected.cache.keys, *expected.cache.values), strict=True
    ):
        assert torch.equal(mine[:NUM_BLOCKS], theirs[:NUM_BLOCKS])
        assert mine[NUM_BLOCKS, 0].any()
        assert not mine[NUM_BLOCKS, 1:].any()
        assert not theirs[NUM_BLOCKS].any()


def test_prompts_are_not_replayed(built: BuiltRank, reference_varlen: VarlenFunction) -> None:
    recorder = Recorder()
    run(built, reference_varlen, [request(1, 90, max_new_tokens=1), request(2, 30, max_new_tokens=1)], recorder)
    assert recorder.replayed == []


def test_one_rank_has_no_collectives_to_record(built: BuiltRank) -> None:
    assert collectives_can_be_recorded()
