"""What is typed is found by parsing; every boolean goes both ways; help never crashes; mistakes are named."""

from __future__ import annotations

import argparse
import dataclasses
from collections import defaultdict
from pathlib import Path

import pytest

from model_providers.vlm_arguments import VLM_ARGUMENTS
from server.arguments.parser import ServeParser
from server.config import EngineConfig, ServerConfig
from server.errors import ConfigurationError


@pytest.fixture(scope="module")
def parser() -> ServeParser:
    return ServeParser()


def switches(parser: ServeParser) -> dict[str, dict[bool, list[str]]]:
    """The flags of every boolean, by destination and the value they give."""
    found: dict[str, dict[bool, list[str]]] = defaultdict(lambda: {True: [], False: []})
    for action in parser._parser._actions:
        if isinstance(action, argparse.BooleanOptionalAction):
            for flag in action.option_strings:
                found[action.dest][not flag.startswith("--no-")].append(flag)
        elif isinstance(action, argparse._StoreTrueAction | argparse._StoreFalseAction):
            found[action.dest][action.const] += action.option_strings
    return dict(found)


def test_every_boolean_can_be_said_both_ways(parser: ServeParser) -> None:
    booleans = switches(parser)
    assert len(booleans) > 300
    for name, flags in booleans.items():
        for value in (True, False):
            assert flags[value], f"{name} cannot be made {value}"
            for flag in flags[value]:
                assert parser.parse([flag]).command_line == {name: value}


@pytest.mark.parametrize(
    ("flag", "name", "value"),
    [
        ("--no-swiglu", "swiglu", False),
        ("--bias-linear", "add_bias_linear", True),
        ("--add-bias-linear", "add_bias_linear", True),
        ("--disable-bias-linear", "add_bias_linear", False),
        ("--position-embedding", "add_position_embedding", True),
        ("--persist-layer-norm", "no_persist_layer_norm", False),
        ("--rope-fusion", "apply_rope_fusion", True),
        ("--load-optim", "no_load_optim", False),
        ("--pad-vocab-size", "pad_vocab_size", True),
        ("--no-use-tiling", "use_tiling", False),
        ("--no-freeze-LM", "freeze_LM", False),
        ("--no-prefix-caching", "prefix_caching", False),
        ("--no-inference-dynamic-batching", "inference_dynamic_batching", False),
    ],
)
def test_both_forms_of_some(parser: ServeParser, flag: str, name: str, value: bool) -> None:
    assert parser.parse([flag]).command_line == {name: value}


def test_typing_a_default_counts_as_typing(parser: ServeParser) -> None:
    typed = parser.parse(["--rotary-base", "10000", "--port=8000", "--no-swiglu"]).command_line
    assert typed == {"rotary_base": 10000, "port": 8000, "swiglu": False}
    assert parser.parse([]).command_line == {}


def test_values_that_look_like_flags_are_not_taken_for_them(parser: ServeParser) -> None:
    """A scan of the command line for `--swiglu` would find one here."""
    assert parser.parse(["--wandb-exp-name=--swiglu"]).command_line == {"wandb_exp_name": "--swiglu"}


def test_abbreviations_are_not_guessed(parser: ServeParser) -> None:
    with pytest.raises(ConfigurationError, match="unknown argument --num-layer; did you mean --num-layers"):
        parser.parse(["--num-layer", "2"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--swiglo"], "did you mean --swiglu"),
        (["--port", "eighty"], "--port: invalid int value: 'eighty'"),
        (["--num-layers"], "--num-layers: expected one argument"),
        (["--dtype", "fp64"], "invalid choice: 'fp64'"),
        (["--print-resolved-args=xml"], "invalid choice: 'xml'"),
        (["stray"], "unknown argument stray"),
    ],
)
def test_mistakes_are_named(parser: ServeParser, argv: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parser.parse(argv)


def test_our_arguments_are_all_there_with_their_defaults(parser: ServeParser) -> None:
    ours = {f.name: f.default for config in (EngineConfig, ServerConfig) for f in dataclasses.fields(config)}
    ours |= {flag.name: flag.default for flag in VLM_ARGUMENTS}
    assert {name: parser.defaults[name] for name in ours} == ours


def test_help_shows_what_people_use_and_help_all_everything(parser: ServeParser) -> None:
    short, long = parser.help_text(everything=False), parser.help_text(everything=True)
    for flag in ("--load", "--tensor-model-parallel-size", "--port", "--dtype", "--use-tiling", "--config"):
        assert flag in short
    assert "--adam-beta1" not in short
    assert "--adam-beta1" in long
    assert len(short.splitlines()) < 350 < len(long.splitlines()) / 4


def test_a_bare_percent_sign_in_a_help_text() -> None:
    from server.arguments.parser import _escape_percent_signs

    parser = argparse.ArgumentParser()
    parser.add_argument("--share", help="at most 10% of all")
    parser.add_argument("--size", type=int, default=3, help="default %(default)s, 5%% more")
    with pytest.raises(TypeError):
        parser.format_help()
    _escape_percent_signs(parser)
    assert "at most 10% of all" in parser.format_help()
    assert "default 3, 5% more" in parser.format_help()


def write(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return ["--config", str(path)]


def test_a_config_file(parser: ServeParser, tmp_path: Path) -> None:
    text = "max-model-len: 64\nswiglu: false\n--use-tiling: true\nspecial_tokens: [a, b]\nlr: 1.0e-4\nthreads:\n"
    typed = parser.parse([*write(tmp_path, text), "--max-model-len", "32"])
    assert typed.config_file == {
        "max_model_len": 64,
        "swiglu": False,
        "use_tiling": True,
        "special_tokens": ["a", "b"],
        "lr": 1e-4,
        "threads": None,
    }
    assert typed.command_line["max_model_len"] == 32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_model_length: 3", r"c\.yaml: unknown key max_model_length; did you mean --max-model-len"),
        ("config: x", "unknown key config"),
        ("port: eighty", r"c\.yaml: port: .*invalid int value"),
        ("port: true", "port: is not a boolean"),
        ("port: [1, 2]", r"c\.yaml: port: "),
        ("port: {a: 1}", "port: must be a single value or a list"),
        ("swiglu: 3", "swiglu: must be true or false"),
        ("use_tiling: 'yes'", "use_tiling: must be true or false"),
        ("port: 1\nport-: 2", "unknown key port_"),
        ("max-model-len: 1\nmax_model_len: 2", "max_model_len is there twice"),
        ("- a", "must hold a mapping"),
        ("a: [", r"c\.yaml, line 1: is not YAML"),
        ("!!python/object/apply:os.system ['false']", "is not YAML"),
    ],
)
def test_mistakes_in_a_config_file_name_file_and_key(
    parser: ServeParser, tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parser.parse(write(tmp_path, text))


def test_a_missing_config_file(parser: ServeParser, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.yaml: cannot be read"):
        parser.parse(["--config", str(tmp_path / "none.yaml")])


def test_clamping_is_for_chat_unless_said_otherwise(parser: ServeParser) -> None:
    assert ServerConfig().clamp_max_tokens == "chat"
    assert parser.parse(["--clamp-max-tokens"]).command_line == {"clamp_max_tokens": "all"}
    assert parser.parse(["--clamp-max-tokens", "none"]).command_line == {"clamp_max_tokens": "none"}
