"""Which file speaks for which language model, alone or inside a vision-language model."""

from __future__ import annotations

from model_providers.checkpoint.hf.family import Family
from model_providers.checkpoint.hf.gpt2 import Gpt2
from model_providers.checkpoint.hf.llama import Llama
from model_providers.checkpoint.hf.mistral import Mistral
from model_providers.checkpoint.hf.qwen2 import Qwen2
from model_providers.checkpoint.hf.qwen3 import Qwen3

TEXT_FAMILIES: dict[str, Family] = {
    "llama": Llama(),  # SmolLM and SmolLM2 call themselves llama
    "mistral": Mistral(),
    "qwen2": Qwen2(),
    "qwen3": Qwen3(),
    "gpt2": Gpt2(),
}
