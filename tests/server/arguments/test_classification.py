"""The table of Megatron's arguments matches the installed megatron-core, name by name."""

from __future__ import annotations

import argparse

import pytest

from server.arguments.classification import classify, megatron_classes, our_classes
from server.arguments.parser import ServeParser
from server.arguments.renames import INFERENCE_ARGUMENTS, RENAMES


@pytest.fixture(scope="module")
def megatron_names() -> set[str]:
    from megatron.training.arguments import add_megatron_arguments

    parser = argparse.ArgumentParser(add_help=False)
    add_megatron_arguments(parser)
    return {action.dest for action in parser._actions}


def test_every_argument_of_megatron_is_classified_and_no_other(megatron_names: set[str]) -> None:
    table = set(megatron_classes())
    assert megatron_names - table == set(), "new in megatron-core: decide what serving does with them"
    assert table - megatron_names == set(), "gone from megatron-core"


def test_every_argument_of_the_parser_is_classified() -> None:
    for name in set(ServeParser().defaults) - {"help", "help_all"}:
        assert classify(name)
    with pytest.raises(KeyError):
        classify("no_such_argument")


def test_what_megatron_copies_from_checkpoints_is_taken_from_them() -> None:
    """megatron.training.checkpointing.load_args_from_checkpoint, without parallelism and formats."""
    import inspect
    import re

    from megatron.training.checkpointing import load_args_from_checkpoint

    source = inspect.getsource(load_args_from_checkpoint)
    copied = set(re.findall(r"_set_arg\('(\w+)'", source)) - {rename.old for rename in RENAMES}
    assert len(copied) > 40
    runtime = {"ckpt_format", "moe_token_dispatcher_type", "num_layers_per_virtual_pipeline_stage"}
    runtime |= {name for name in copied if name.endswith("parallel_size")}
    assert {name for name in copied - runtime if not classify(name).from_checkpoint} == set()


def test_arguments_without_effect_have_a_reason() -> None:
    for name, entry in megatron_classes().items():
        assert entry.category in {"architecture", "tokenizer", "vision", "numerics", "runtime"}, name
        assert entry.effect in {"used", "none", "refused", "mapped"}, name
        assert bool(entry.reason) is (entry.effect in {"none", "refused"}), name


def test_mapped_arguments_are_mapped() -> None:
    mapped = {name for name, entry in megatron_classes().items() if entry.effect == "mapped"}
    assert mapped == {rename.old for rename in INFERENCE_ARGUMENTS}
    assert {rename.new for rename in INFERENCE_ARGUMENTS} <= set(our_classes())
