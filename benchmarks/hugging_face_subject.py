"""Hugging Face's own implementation: `generate` on static batches, sdpa attention, left padding."""

from __future__ import annotations

import os
import time
from typing import Any

import psutil
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from benchmarks.machine import peak_rss_bytes
from benchmarks.messages import Generate, Generated, Load, Loaded

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PAD = 0  # masked out everywhere, so any id will do


class HuggingFaceSubject:
    """load.model: a directory that `from_pretrained` reads."""

    def __init__(self, load: Load) -> None:
        rss_after_imports = psutil.Process().memory_info().rss
        torch.set_num_threads(load.threads)
        started = time.perf_counter()
        model: Any = AutoModelForCausalLM.from_pretrained(
            load.model, dtype=DTYPES[load.dtype], attn_implementation="sdpa", local_files_only=True
        )
        self._model = model.eval().to(load.device)
        load_seconds = time.perf_counter() - started
        self._prompts = load.prompts
        self._generate_batch(self._prompts[:1], 2)
        self.loaded = Loaded(
            load_seconds=load_seconds,
            rss_after_imports_bytes=rss_after_imports,
            rss_ready_bytes=psutil.Process().memory_info().rss,
            weights_bytes=sum(p.numel() * p.element_size() for p in self._model.parameters()),
        )

    def generate(self, command: Generate) -> Generated:
        """Batch after batch, in the order of the prompts."""
        prompts = command.prompts or self._prompts
        size = command.batch_size or len(prompts)
        batches = [prompts[i : i + size] for i in range(0, len(prompts), size)]
        started = time.perf_counter()
        token_ids = [ids for batch in batches for ids in self._generate_batch(batch, command.max_new_tokens)]
        seconds = time.perf_counter() - started
        return Generated(seconds=seconds, token_ids=token_ids, peak_rss_bytes=peak_rss_bytes(os.getpid()))

    @torch.inference_mode()
    def _generate_batch(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        width = max(map(len, prompts))
        padded = [[_PAD] * (width - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        # No end of sequence at all, rather than its suppression: the tokens are then those of ignore_eos, and no logits
        # processor runs. The model's own generation config would bring its end token back, so it is replaced.
        self._model.generation_config = GenerationConfig(
            max_new_tokens=max_new_tokens,
            min_new_tokens=max_new_tokens,
            do_sample=False,
            pad_token_id=_PAD,
            eos_token_id=None,
        )
        device = self._model.device
        generated = self._model.generate(
            input_ids=torch.tensor(padded, device=device), attention_mask=torch.tensor(mask, device=device)
        )
        token_ids: list[list[int]] = generated[:, width:].tolist()
        return token_ids
