"""The engine on a tiny model in this process: log-probabilities, isolation of requests, aborts, and Megatron's keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core.models.gpt import GPTModel
from transformers import PreTrainedModel

from model_providers.checkpoint.single_process import process_group_of_one
from server.arguments.resolver import main as resolve
from server.config import ResolvedDocument
from server.engine import model_runner
from server.engine.build import BuiltRank, build_rank
from server.engine.engine import Engine
from server.engine.warmup import warm_up
from server.request import EngineRequest, RequestOutput, SamplingParams

VOCABULARY = 131


def request(name: str, prompt: list[int], **params: Any) -> EngineRequest:
    return EngineRequest(request_id=name, prompt_token_ids=prompt, params=SamplingParams(**params))


def run(engine: Engine, *requests: EngineRequest) -> dict[str, list[RequestOutput]]:
    outputs: dict[str, list[RequestOutput]] = {item.request_id: [] for item in requests}
    for refused in engine.add(requests):
        outputs[refused.request_id].append(refused)
    while engine.has_work:
        for output in engine.step():
            outputs[output.request_id].append(output)
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_blocks
    return outputs


def tokens_of(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def prompt_of(length: int, seed: int) -> list[int]:
    return torch.randint(0, VOCABULARY, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module")
def built(padded_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltRank]:
    document_file = tmp_path_factory.mktemp("document") / "document.json"
    flags = ["--load", str(padded_checkpoint), "--dtype", "fp32", "--kv-cache-gb", "0.02", "--max-batched-tokens", "24"]
    assert resolve(["--out", str(document_file), "--", *flags]) == 0
    with process_group_of_one():
        rank = build_rank(ResolvedDocument.read(document_file))
        warm_up(rank)
        yield rank


@pytest.fixture
def engine(built: BuiltRank) -> Engine:
    built.engine.flush_prefix_cache()
    return built.engine


@pytest.fixture
def truth(padded_model: tuple[PreTrainedModel, Path]) -> Any:
    """Log-probabilities (tokens, vocabulary) of a whole sequence by Hugging Face, over the ids that exist."""

    @torch.inference_mode()
    def logprobs(tokens: list[int]) -> torch.Tensor:
        logits = padded_model[0](input_ids=torch.tensor([tokens])).logits[0, :, :VOCABULARY]
        return logits.log_softmax(-1)

    return logprobs


@pytest.mark.parametrize("start", [0, 1, 20, 59])
@pytest.mark.parametrize("cached", [False, True])
def test_prompt_logprobs_are_hugging_face_s_in_chunks_and_behind_a_cached_prefix(
    engine: Engine, truth: Any, start: int, cached: bool
) -> None:
    prompt = prompt_of(60, 1)  # three chunks of 24
    if cached:
        run(engine, request("before", prompt, max_new_tokens=1, temperature=0.0))
    wanted = request(
        "a", prompt, max_new_tokens=3, temperature=0.0, logprobs=2, prompt_logprobs=2, prompt_logprobs_start=start
    )
    outputs = run(engine, wanted)["a"]
    tokens = tokens_of(outputs)
    expected = truth(prompt + tokens)
    entries = outputs[0].prompt_logprobs
    assert entries is not None
    assert len(entries) == 60 - start
    for position, entry in enumerate(entries, start):
        if position == 0:
            assert entry is None
            continue
        assert entry is not None
        assert entry.token_id == prompt[position]
        row = expected[position - 1]
        assert entry.logprob == pytest.approx(float(row[prompt[position]]), abs=1e-4)
        assert entry.top_logprobs == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)
    for index, output in enumerate(outputs):
        assert output.logprobs is not None
        row = expected[59 + index]
        assert output.logprobs[0].logprob == pytest.approx(float(row[tokens[index]]), abs=1e-4)
    assert all(output.prompt_logprobs is None for output in outputs[1:])
    # Three full blocks were kept; what is before the first wanted position can come from them.
    assert outputs[0].num_cached_tokens == (min(max(start - 1, 0), 48) if cached else 0)


def test_a_request_gives_the_same_alone_and_among_others(engine: Engine) -> None:
    cases = [
        {"temperature": 0.0},
        {"temperature": 0.9, "seed": 3},
        {"temperature": 1.3, "seed": 4, "top_p": 0.8},
        {"temperature": 0.7, "seed": 5, "top_k": 7, "repetition_penalty": 1.3},
        {"temperature": 1.0, "seed": 6, "min_p": 0.05, "presence_penalty": 0.4, "frequency_penalty": 0.2},
        {"temperature": 1.0, "seed": 7, "logit_bias": {5: 4.0, 6: -50.0}},
    ]
    requests = [
        request(str(index), prompt_of(5 + 9 * index, index), max_new_tokens=15, **case)
        for index, case in enumerate(cases)
    ]
    alone = {item.request_id: tokens_of(run(engine, item)[item.request_id]) for item in requests}
    engine.flush_prefix_cache()
    together = {name: tokens_of(outputs) for name, outputs in run(engine, *requests).items()}
    assert together == alone
    assert len({tuple(tokens) for tokens in alone.values()}) == len(cases)


def test_ends_by_stop_token_length_and_minimum(engine: Engine) -> None:
    prompt = prompt_of(8, 9)
    free = tokens_of(run(engine, request("free", prompt, max_new_tokens=12, temperature=0.0))["free"])
    stop = free[3]
    assert stop not in free[:3]
    [*_, last] = run(engine, request("s", prompt, max_new_tokens=12, temperature=0.0, stop_token_ids=(stop,)))["s"]
    assert (last.finish_reason, last.stop_token_id) == ("stop", stop)
    later = run(
        engine, request("m", prompt, max_new_tokens=12, temperature=0.0, stop_token_ids=(stop,), min_new_tokens=6)
    )["m"]
    assert stop not in tokens_of(later)[:6]
    assert len(tokens_of(later)) >= 6


def test_what_can_never_run_is_answered_at_once_and_others_go_on(engine: Engine, built: BuiltRank) -> None:
    most = built.limits.max_model_len
    outputs = run(engine, request("huge", [1] * most), request("fine", [1], max_new_tokens=2))
    assert outputs["huge"][0].finish_reason == "error"
    assert str(most) in (outputs["huge"][0].error or "")
    assert len(tokens_of(outputs["fine"])) == 2


def test_an_abort_between_steps_leaves_the_others_alone(engine: Engine) -> None:
    kept = request("kept", prompt_of(30, 2), max_new_tokens=8, temperature=0.0)
    expected = tokens_of(run(engine, kept)["kept"])
    engine.flush_prefix_cache()
    engine.add([kept, request("gone", prompt_of(30, 3), max_new_tokens=500)])
    tokens: list[int] = []
    for step in range(40):
        if step == 3:
            engine.abort(["gone", "gone"])
        for output in engine.step() if engine.has_work else []:
            assert output.request_id == "kept" or step < 3
            tokens += output.token_ids if output.request_id == "kept" else []
    assert tokens == expected
    assert engine.stats().num_free_blocks == engine.stats().num_blocks


def test_what_serves_is_megatron_s_model_with_its_keys_and_values(
    built: BuiltRank, padded_model: tuple[PreTrainedModel, Path]
) -> None:
    model = built.runner.model
    assert isinstance(model, GPTModel)
    state = model.state_dict()
    names = {name for name in state if not name.endswith("_extra_state")}
    layer = {
        "input_layernorm.weight",
        "mlp.linear_fc1.weight",
        "mlp.linear_fc2.weight",
        "pre_mlp_layernorm.weight",
        "self_attention.linear_proj.weight",
        "self_attention.linear_qkv.weight",
    }
    assert names == {
        "embedding.word_embeddings.weight",
        "decoder.final_layernorm.weight",
        "output_layer.weight",
        *(f"decoder.layers.{index}.{name}" for index in range(3) for name in layer),
    }
    # Packed weights give their values back.
    reference = padded_model[0].state_dict()
    down = state["decoder.layers.1.mlp.linear_fc2.weight"]
    torch.testing.assert_close(down, reference["model.layers.1.mlp.down_proj.weight"], rtol=0, atol=0)
    torch.testing.assert_close(state["output_layer.weight"], reference["lm_head.weight"], rtol=0, atol=0)


def test_log_probabilities_of_a_prompt_come_in_pieces_of_bounded_size(
    engine: Engine, truth: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "MOST_LOGITS", 7 * VOCABULARY + 3)  # seven rows at a time, of chunks of 24
    prompt = prompt_of(60, 4)
    [first] = run(engine, request("a", prompt, max_new_tokens=1, temperature=0.0, prompt_logprobs=1))["a"]
    expected = truth(prompt)
    assert first.prompt_logprobs is not None
    assert len(first.prompt_logprobs) == 60
    for position, entry in enumerate(first.prompt_logprobs):
        if entry is not None:
            assert entry.logprob == pytest.approx(float(expected[position - 1][prompt[position]]), abs=1e-4)
