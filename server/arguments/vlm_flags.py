"""Flags of vision-language models, one for each of `model_providers.vlm_arguments`. Torch-free."""

from __future__ import annotations

import argparse

from model_providers.vlm_arguments import VLM_ARGUMENTS
from server.arguments.option_groups import OptionGroup


def add_vlm_inference_args(parser: argparse.ArgumentParser) -> None:
    """Add them in a group. Megatron's `--img-h`, `--img-w`, `--patch-dim` and `--decoder-seq-length` belong to it."""
    group = OptionGroup(parser, "vision-language models")
    for argument in VLM_ARGUMENTS:
        group.add(argument.name, argument.default, argument.help, **argument.options)
