"""A GGUF file as a plain Hugging Face directory: weights dequantised to float32, configuration and tokenizer.

transformers does the reading (it needs the packages gguf and accelerate). Its models loaded from GGUF count as
quantised and refuse `save_pretrained`, so the weights are written directly.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from model_providers.errors import CheckpointError


def gguf_to_hf_directory(gguf: Path, destination: Path) -> None:
    """Write config.json, model.safetensors (float32), tokenizer and generation configuration into `destination`.

    Raises CheckpointError when a needed package is missing or transformers cannot read the file.
    """
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise CheckpointError(gguf, f"reading GGUF needs the package {package}: pip install {package}")
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    try:
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**source)
    except Exception as error:  # on a damaged file the reader raises whatever it stumbles over
        raise CheckpointError(gguf, f"transformers cannot read this GGUF file: {error}") from error

    destination.mkdir(parents=True, exist_ok=True)
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(model).__name__]
    config.save_pretrained(destination)
    model.generation_config.save_pretrained(destination)
    tied = set(model.all_tied_weights_keys) if config.tie_word_embeddings else set()
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied}
    save_file(weights, destination / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(destination)
