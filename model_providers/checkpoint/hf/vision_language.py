"""What Hugging Face's vision-language models of LLaVA's plan share: a tower, a projector and a language model."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from model_providers.checkpoint.hf.family import Family, NamedTensor
from model_providers.checkpoint.hf.part_of_source import PartOfSource
from model_providers.checkpoint.hf.source import TensorSource
from model_providers.checkpoint.hf.text_families import TEXT_FAMILIES
from model_providers.checkpoint.hf.vision_tower import Tower
from model_providers.errors import UnsupportedModelError

# A tower's own name comes once more in files that older versions of transformers wrote.
_TOWERS = ("vision_tower.vision_model.", "vision_tower.", "model.vision_tower.vision_model.", "model.vision_tower.")
# Of a tower, what its last features do not depend on: a norm and a pooling head behind them, and a buffer of numbers.
_BEHIND_FEATURES = re.compile(r"(post_layernorm|layernorm|head)\.|embeddings\.position_ids$")
_TOWER_LAYER = re.compile(r"encoder\.layers?\.(\d+)\.")


def language_config(config: Any) -> Any:
    """The language model's configuration, with the whole model's word on whether it ties its output layer."""
    text = copy.deepcopy(config.text_config)
    text.tie_word_embeddings = config.tie_word_embeddings
    return text


def language_family(config: Any) -> Family:
    """Raises UnsupportedModelError for a language model that cannot be imported, or not in this place."""
    kind = config.text_config.model_type
    family = TEXT_FAMILIES.get(kind)
    if family is None or kind == "gpt2":  # its learned positions would count an image as one
        known = ", ".join(sorted(set(TEXT_FAMILIES) - {"gpt2"}))
        raise UnsupportedModelError("text_config.model_type", f"{kind!r} is not supported, only {known}")
    return family


def kept_layers(config: Any) -> int:
    """How many of the tower's layers `vision_feature_layer` looks behind."""
    layer, count = config.vision_feature_layer, config.vision_config.num_hidden_layers
    if not isinstance(layer, int):
        raise UnsupportedModelError("vision_feature_layer", f"{layer}: features of several layers are not supported")
    kept = layer if layer >= 0 else count + 1 + layer
    if not 1 <= kept <= count:
        raise UnsupportedModelError("vision_feature_layer", f"{layer} is not one of the tower's {count} layers")
    return kept


def command_line(flags: Mapping[str, object]) -> list[str]:
    """A value of None belongs to a flag that takes none."""
    return [str(part) for name, value in flags.items() for part in ((name,) if value is None else (name, value))]


def language_tensors(source: TensorSource) -> Iterator[NamedTensor]:
    """The language model's parameters, by the names they have within LLaVAModel."""
    config = language_config(source.config)
    older = "language_model.model.embed_tokens.weight" in source
    prefixes = {
        "model.": "language_model.model." if older else "model.language_model.",
        "lm_head.": "language_model.lm_head." if older else "lm_head.",
    }
    for name, tensor in language_family(source.config).tensors(PartOfSource(source, config, prefixes)):
        yield NamedTensor(f"language_model.{name}", tensor)


def tower_tensors(source: TensorSource, tower: Tower, some_tensor: str) -> Iterator[NamedTensor]:
    """The tower's parameters. some_tensor: one that it has in any case, which shows what its names begin with."""
    prefix = next((prefix for prefix in _TOWERS if prefix + some_tensor in source), _TOWERS[0])
    part = PartOfSource(source, source.config.vision_config, {"": prefix})
    yield from tower.tensors(part, kept_layers(source.config))


def projector(source: TensorSource) -> PartOfSource:
    """The projector's tensors."""
    older = "multi_modal_projector.linear_1.weight" in source
    return PartOfSource(
        source, source.config, {"": "multi_modal_projector." if older else "model.multi_modal_projector."}
    )


def is_ignorable(name: str, config: Any) -> bool:
    """Whether it is of the tower and the features do not depend on it, or of the language model and a buffer."""
    prefix = next((prefix for prefix in _TOWERS if name.startswith(prefix)), None)
    if prefix is None:
        return language_family(config).is_ignorable(name, config.text_config)
    own = name.removeprefix(prefix)
    layer = _TOWER_LAYER.match(own)
    return int(layer[1]) >= kept_layers(config) if layer else _BEHIND_FEATURES.match(own) is not None
