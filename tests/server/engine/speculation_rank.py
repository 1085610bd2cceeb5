"""One rank that gives the same answers with guesses and without: `torchrun ... speculation_rank.py DOCUMENTS RESULT`.

DOCUMENTS: files of resolved documents, with commas between them. RESULT, written by rank 0, as JSON, for each document
{"plain", "guessing", "stats"}: outputs (`RequestOutput`) by request id, in order, and the counters of the guessing run.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from model_providers.parallel import join_world, shutdown_parallel
from server.config import ResolvedDocument
from server.engine import model_runner
from server.engine.build import build_rank
from server.engine.engine import Engine
from server.engine.model_runner import follow
from server.engine.profiler import RankProfiler
from server.engine.step_plan import StepKind
from server.request import EngineRequest, RequestOutput, SamplingParams

Outputs = dict[str, list[RequestOutput]]

WAYS: list[dict[str, Any]] = [
    {"logprobs": 3},
    {"logit_bias": {7: 5.0}},
    {"stop_token_ids": tuple(range(40)), "min_new_tokens": 25},
    {"prompt_logprobs": 1},
    {"repetition_penalty": 1.2},
    {"temperature": 0.8, "seed": 3},
]
"""What each third prompt is asked; the others are plain, so that most rows are guessed."""


def requests(vocab_size: int) -> list[EngineRequest]:
    """Prompts that repeat a piece and such that do not, with answers of 1 to 80 tokens."""
    rng = random.Random(8)
    shared = [rng.randrange(vocab_size) for _ in range(35)]
    made = []
    for index in range(36):
        piece = [rng.randrange(vocab_size) for _ in range(rng.randint(1, 12))]
        prompt = piece * 4 if index % 2 else [rng.randrange(vocab_size) for _ in range(rng.randint(1, 60))]
        if index % 7 == 0:
            prompt = shared + prompt
        params = {"temperature": 0.0, "max_new_tokens": rng.randint(1, 80), "logprobs": 0}
        params |= WAYS[index // 3 % len(WAYS)] if index % 3 == 0 else {"stop_token_ids": (index, index + 40)}
        made.append(EngineRequest(request_id=str(index), prompt_token_ids=prompt, params=SamplingParams(**params)))
    return made


def run(engine: Engine, wanted: list[EngineRequest], *, speculative_tokens: int) -> Outputs:
    """Requests arrive two at a time; one is aborted while it runs."""
    scheduler = engine._scheduler
    scheduler.limits = replace(scheduler.limits, speculative_tokens=speculative_tokens)
    engine.flush_prefix_cache()
    outputs: Outputs = {request.request_id: [] for request in wanted}
    aborted = [wanted[len(wanted) // 2 - 1].request_id]
    waiting = list(wanted)
    while waiting or engine.has_work:
        arriving, waiting = waiting[:2], waiting[2:]
        assert engine.add(arriving) == []
        if len(waiting) == len(wanted) // 2:
            engine.abort(aborted)
        for output in engine.step():
            outputs[output.request_id].append(output)
    assert engine.num_held_blocks == 0
    return {name: made for name, made in outputs.items() if name not in aborted}


def continued(wanted: list[EngineRequest], outputs: Outputs) -> list[EngineRequest]:
    """The same sequences from places in the midst of what they repeat, to end some tokens later.

    Once by length and, where the last of these tokens comes there first, once by a stop token.
    """
    made = []
    for number, request in enumerate(wanted):
        tokens = [token for output in outputs.get(request.request_id, []) for token in output.token_ids]
        if len(tokens) <= 30:
            continue
        for place, begin in enumerate((len(tokens) // 3, len(tokens) // 2, len(tokens) * 2 // 3)):
            count = 2 + (number + place) % 4
            *others, last = tokens[begin : begin + count]
            ends: list[dict[str, Any]] = [{"max_new_tokens": count}]
            if last not in others:
                ends.append({"max_new_tokens": 20, "stop_token_ids": (last,)})
            for end in ends:
                made.append(
                    EngineRequest(
                        request_id=f"{request.request_id} from {begin}, {end}",
                        prompt_token_ids=request.prompt_token_ids + tokens[:begin],
                        params=SamplingParams(temperature=0.0, **end),
                    )
                )
    return made


def with_and_without(engine: Engine, vocab_size: int) -> dict[str, Any]:
    wanted = requests(vocab_size)
    first = run(engine, wanted, speculative_tokens=0)
    later = continued(wanted, first)
    return {
        "plain": first | run(engine, later, speculative_tokens=0),
        "guessing": run(engine, wanted, speculative_tokens=6) | run(engine, later, speculative_tokens=6),
        "stats": engine.stats(),
    }


def main() -> None:
    documents, result = sys.argv[1].split(","), Path(sys.argv[2])
    model_runner.MOST_LOGITS = 9 * 132  # so that the rows of a sequence come in different pieces
    join_world()
    outcomes = []
    for path in documents:
        document = ResolvedDocument.read(Path(path))
        torch.set_num_threads(document.values["threads"])
        built = build_rank(document)
        if dist.get_rank() == 0:
            outcomes.append(with_and_without(built.engine, built.limits.vocab_size))
            built.engine.signal(StepKind.STOP)
        else:
            follow(built.runner, RankProfiler(None, dist.get_rank()))
    if dist.get_rank() == 0:
        result.write_bytes(msgspec.json.encode(outcomes))
    shutdown_parallel()


if __name__ == "__main__":
    main()
