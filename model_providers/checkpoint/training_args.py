"""The argument namespace that a Megatron training run stores in its checkpoints.

A checkpoint made without training needs the same, complete namespace. It comes from Megatron's own parser and its own
validation, fed with the command line that would have trained the model, so no argument is missing and every derived one
(`params_dtype`, `ffn_hidden_size`, `encoder_num_layers`) has the value that Megatron gives it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import warnings
from argparse import Namespace
from collections.abc import Sequence
from typing import NoReturn

from model_providers.errors import UnsupportedModelError
from model_providers.vlm_arguments import add_vlm_arguments

# What validation demands of every run, and what is true of a model without optimiser and random state.
_RUN_FLAGS = ("--micro-batch-size", "1", "--no-save-optim", "--no-save-rng", "--ckpt-format", "torch_dist")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:  # argparse's own would end the process
        raise UnsupportedModelError("command line", message)


def training_args(flags: Sequence[str], *, multimodal: bool = False) -> Namespace:
    """Megatron's arguments for the training command line `flags`, parsed and validated for one rank.

    multimodal: of a vision-language model; the namespace has `vlm_arguments.VLM_ARGUMENTS`, too.
    Raises UnsupportedModelError when Megatron's parser or validation refuses them.
    """
    from megatron.training.arguments import add_megatron_arguments, validate_args

    parser = _Parser(allow_abbrev=False, prog="megatron")
    add_megatron_arguments(parser)
    if multimodal:
        add_vlm_arguments(parser)
    args = parser.parse_args([*_RUN_FLAGS, *flags])
    # megatron.training.arguments.parse_args sets these after parsing, two from the environment of a training job.
    args.rank, args.world_size = 0, 1
    args._is_global_batch_size_explicitly_specified = False
    # Validation prints all 800 arguments and gives advice about training.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            validate_args(args)
        except AssertionError as error:  # how Megatron reports arguments that contradict each other
            raise UnsupportedModelError("command line", str(error) or "Megatron's validation refuses it") from error
    return args
