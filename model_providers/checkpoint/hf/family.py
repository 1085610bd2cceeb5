"""What a model family must say about itself to be imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch

from model_providers.checkpoint.hf.source import TensorSource
from model_providers.errors import CheckpointError, UnsupportedModelError


class NamedTensor(NamedTuple):
    """A parameter of Megatron's GPTModel or LLaVAModel, whole (TP=1), by its local-spec name."""

    name: str
    tensor: torch.Tensor


class Family(Protocol):
    """One file of this package per family; `registry` lists them.

    multimodal: its flags are those of vision-language models, too.
    """

    multimodal: bool

    def megatron_flags(self, config: Any) -> list[str]:
        """The Megatron command line that describes the architecture of `config` (a transformers configuration).

        Raises UnsupportedModelError for an option that Megatron's GPTModel does not have.
        """

    def tensors(self, source: TensorSource) -> Iterator[NamedTensor]:
        """Every parameter, each as soon as its parts are read."""

    def is_ignorable(self, name: str, config: Any) -> bool:
        """Whether a Hugging Face tensor that `tensors` did not take carries no information, as a mask buffer does."""


def require(config: Any, option: str, *accepted: object) -> None:
    """Refuse the model, naming the option, unless `config.option` is one of `accepted`; absent counts as None."""
    value = getattr(config, option, None)
    if value not in accepted:
        allowed = " or ".join(map(repr, accepted))
        raise UnsupportedModelError(option, f"{value!r} in config.json is not supported, only {allowed}")


def output_layer(source: TensorSource, embedding: torch.Tensor) -> Iterator[NamedTensor]:
    """The output layer of a model that has its own; a tied model may store the embedding once more, if it is the same.

    Raises CheckpointError when a model that says it is tied stores an output layer of its own.
    """
    name = "lm_head.weight"
    if not source.config.tie_word_embeddings:
        yield NamedTensor("output_layer.weight", source.take(name))
    elif name in source and not torch.equal(source.take(name), embedding):
        raise CheckpointError(source.directory, f"config.json ties {name} to the embedding, but the weights differ")
