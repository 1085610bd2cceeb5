"""A random model under grammars: whatever it says, it says what it was told to, and nobody else notices."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer

from model_providers.checkpoint.single_process import process_group_of_one
from server.arguments.resolver import main as resolve
from server.config import ResolvedDocument
from server.engine.build import build_rank
from server.engine.engine import Engine
from server.request import EngineRequest, Grammar, RequestOutput, SamplingParams

EOS = 2


@pytest.fixture(scope="module")
def small_cache_engine(byte_level_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Room for about 600 tokens: a few dozen answers at once do not fit."""
    document_file = tmp_path_factory.mktemp("document") / "document.json"
    flags = ["--load", str(byte_level_checkpoint), "--dtype", "fp32", "--kv-cache-gb", "0.0003", "--threads", "1"]
    assert resolve(["--out", str(document_file), "--", *flags]) == 0
    with process_group_of_one():
        engine = build_rank(ResolvedDocument.read(document_file)).engine
        yield engine
        engine.close()


@pytest.fixture
def engine(small_cache_engine: Engine) -> Engine:
    small_cache_engine.flush_prefix_cache()
    return small_cache_engine


@pytest.fixture(scope="module")
def tokenizer(tokenizer_directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_directory / "tokenizer.json"))


def request(name: str, kind: str | None, text: str = "", **params: Any) -> EngineRequest:
    grammar = None if kind is None else Grammar(kind=kind, text=text, field="the_field")  # type: ignore[arg-type]
    params = {"max_new_tokens": 200, "seed": len(name) * 1000 + sum(name.encode())} | params
    prompt = [ord(character) % 90 + 10 for character in f"prompt {name}"]
    return EngineRequest(
        request_id=name,
        prompt_token_ids=prompt,
        params=SamplingParams(grammar=grammar, stop_token_ids=(EOS,), **params),
    )


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


def text_of(tokenizer: Tokenizer, outputs: list[RequestOutput]) -> str:
    return tokenizer.decode(tokens_of(outputs), skip_special_tokens=True)


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["string", "integer", "boolean", "enum", "null", "pattern"] + ["object", "array"] * (depth < 2)
    match rng.choice(kinds if depth else ["object", "array"]):
        case "string":
            return {"type": "string", "maxLength": rng.randrange(1, 6)}
        case "pattern":
            return {"type": "string", "pattern": rng.choice(["^[a-f]{2}$", "^(x|yz){1,3}$", r"^\d\d-\d$"])}
        case "integer":
            low = rng.randrange(-50, 50)
            return {"type": "integer", "minimum": low, "maximum": low + rng.randrange(100)}
        case "enum":
            return {"enum": rng.sample(["red", "grün", 3, None, {"a": [1]}], 2)}
        case "array":
            return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": 1, "maxItems": 3}
        case "object":
            names = rng.sample(["name", "count", "a b", "ключ", 'quo"te'], rng.randrange(1, 4))
            return {
                "type": "object",
                "properties": {name: random_schema(rng, depth + 1) for name in names},
                "required": rng.sample(names, rng.randrange(len(names) + 1)),
                "additionalProperties": False,
            }
        case kind:
            return {"type": kind}


VARIETY: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 2.0, "repetition_penalty": 1.4},
    {"temperature": 0.8, "top_k": 3, "presence_penalty": 1.0},
    {"temperature": 1.2, "top_p": 0.6, "logit_bias": {EOS: 100.0, 70: 100.0}},
    {"temperature": 1.0, "min_p": 0.2, "logprobs": 2},
]


def test_fifty_schemas_at_once_give_fifty_valid_texts_and_preemption_changes_nothing(
    engine: Engine, tokenizer: Tokenizer
) -> None:
    rng = random.Random(5)
    schemas = {f"s{index}": random_schema(rng) for index in range(50)}
    free = [request(f"free{index}", None, max_new_tokens=60, **VARIETY[index]) for index in range(len(VARIETY))]
    bound = [
        request(name, "json_schema", json.dumps(schema), **VARIETY[index % len(VARIETY)])
        for index, (name, schema) in enumerate(schemas.items())
    ]
    alone = {item.request_id: tokens_of(run(engine, item)[item.request_id]) for item in (*free, *bound[:12])}
    engine.flush_prefix_cache()
    before = engine.stats().total_preemptions
    together = run(engine, *bound, *free)
    assert engine.stats().total_preemptions > before
    for name, tokens in alone.items():
        assert tokens_of(together[name]) == tokens, name
    num_complete = 0
    for name, schema in schemas.items():
        if together[name][-1].finish_reason == "stop":
            text = text_of(tokenizer, together[name])
            jsonschema.validate(json.loads(text), schema)
            num_complete += 1
        else:
            assert together[name][-1].finish_reason == "length"
    assert num_complete >= 45
    assert all(token < 400 for outputs in together.values() for token in tokens_of(outputs))


@pytest.mark.parametrize("pattern", [r"\d{4}-\d\d", "(yes|no)", "[a-z]{1,5}!", "é+", r"(?i)hello( world)?", "a{40}"])
def test_regexes_match_as_a_whole(engine: Engine, tokenizer: Tokenizer, pattern: str) -> None:
    requests = [request(f"r{i}", "regex", pattern, temperature=1.5 * i, ignore_eos=i == 2) for i in range(3)]
    for outputs in run(engine, *requests).values():
        if outputs[-1].finish_reason == "stop":
            assert re.fullmatch(pattern, text_of(tokenizer, outputs))
        else:
            assert pattern == "é+"


def test_a_stop_token_of_the_client_can_end_the_answer_only_as_the_grammar_allows(
    engine: Engine, tokenizer: Tokenizer
) -> None:
    exclamation = tokenizer.token_to_id("!")
    grammar = Grammar(kind="regex", text="(ab){2,}", field="f")
    params = SamplingParams(
        grammar=grammar, stop_token_ids=(exclamation,), logit_bias={exclamation: 100.0}, max_new_tokens=30
    )
    outputs = run(engine, EngineRequest(request_id="x", prompt_token_ids=[70], params=params))["x"]
    assert (outputs[-1].finish_reason, outputs[-1].stop_token_id) == ("stop", exclamation)
    assert tokenizer.decode(tokens_of(outputs)) == "abab!"


def test_a_grammar_that_cannot_be_used_fails_its_own_requests_alone(engine: Engine, tokenizer: Tokenizer) -> None:
    fine = request("fine", "regex", "(yes|no)")
    plain = request("plain", None, max_new_tokens=20, temperature=0.0)
    expected = tokens_of(run(engine, plain)["plain"])
    chain = "start: a0\n" + "".join(f"a{i}: a{i + 1}\n" for i in range(20000)) + 'a20000: "x"'
    bad = [request("bad1", "regex", "(a|"), request("bad2", "grammar", chain), request("bad3", "json_schema", "[")]
    outputs = run(engine, plain, *bad, fine)
    for item in bad:
        [output] = outputs[item.request_id]
        assert output.finish_reason == "error"
        assert output.invalid_field == "the_field"
        assert (output.error or "").startswith("the_field: ")
    assert tokens_of(outputs["plain"]) == expected
    assert text_of(tokenizer, outputs["fine"]) in ("yes", "no")


def test_an_abort_while_the_grammar_compiles_forgets_the_request(engine: Engine) -> None:
    engine.add([request("gone", "regex", "(fox|dog){1,7}")])
    assert engine.has_work
    assert (engine.stats().num_waiting, engine.stats().num_compiling) == (1, 1)
    engine.abort(["gone"])
    assert not engine.has_work


def test_the_batch_goes_on_while_a_grammar_compiles(engine: Engine) -> None:
    engine.add([request("running", None, max_new_tokens=200, temperature=0.0, ignore_eos=True)])
    engine.step()
    engine.add([request("waiting", "regex", "(a|b){3}(c|d){2}")])  # a new process has to try it out first
    assert [output.request_id for output in engine.step()] == ["running"]
    while engine.has_work:
        engine.step()
