"""Hugging Face's vision-language models: processor and `generate` on static batches, sdpa attention, left padding.

As people run it every question is prepared and encoded with its picture. `encode_each_once` is the baseline that a
careful user would write: the features of each distinct picture are computed first, and put into the prompts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import psutil
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoModelForImageTextToText, CLIPImageProcessorPil, GenerationConfig

from benchmarks.hugging_face_subject import DTYPES
from benchmarks.machine import peak_rss_bytes
from benchmarks.messages import Generate, Generated, Load, Loaded

_PAD = 0


class HuggingFaceVlmSubject:
    """load.model: a directory that `from_pretrained` reads, with an image processor's options."""

    def __init__(self, load: Load) -> None:
        assert load.pictures is not None, "there is a picture in every question"
        rss_after_imports = psutil.Process().memory_info().rss
        torch.set_num_threads(load.threads)
        started = time.perf_counter()
        model: Any = AutoModelForImageTextToText.from_pretrained(
            load.model, dtype=DTYPES[load.dtype], attn_implementation="sdpa", local_files_only=True
        )
        self._model = model.eval().to(load.device)
        # torchvision's processor, the other one, resizes differently and needs another package.
        self._processor: Any = CLIPImageProcessorPil.from_pretrained(load.model, local_files_only=True)
        self._image_token_id: int = model.config.image_token_id
        load_seconds = time.perf_counter() - started
        self._prompts = load.prompts
        self._pictures = load.pictures
        self.loaded = Loaded(
            load_seconds=load_seconds,
            rss_after_imports_bytes=rss_after_imports,
            rss_ready_bytes=psutil.Process().memory_info().rss,
            weights_bytes=sum(p.numel() * p.element_size() for p in self._model.parameters()),
        )

    @torch.inference_mode()
    def generate(self, command: Generate) -> Generated:
        """Batch after batch, in the order of the prompts."""
        size = command.batch_size or len(self._prompts)
        self._set_length(command.max_new_tokens)
        token_ids: list[list[int]] = []
        started = time.perf_counter()
        features = self._encode_each_once(size) if command.encode_each_once else None
        for begin in range(0, len(self._prompts), size):
            batch = range(begin, min(begin + size, len(self._prompts)))
            token_ids += self._generate_batch(batch, features)
        seconds = time.perf_counter() - started
        return Generated(seconds=seconds, token_ids=token_ids, peak_rss_bytes=peak_rss_bytes(os.getpid()))

    def _generate_batch(self, batch: range, features: Tensor | None) -> list[list[int]]:
        prompts = [self._prompts[i] for i in batch]
        width = max(map(len, prompts))
        input_ids = torch.tensor([[_PAD] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        pictures = [self._pictures.of_prompt[i] for i in batch]
        if features is None:
            generated = self._model.generate(
                input_ids=input_ids, attention_mask=mask, pixel_values=self._pixels(pictures)
            )[:, width:]
        else:
            embeddings = self._model.get_input_embeddings()(input_ids)
            embeddings[input_ids == self._image_token_id] = features[pictures].flatten(0, 1)
            generated = self._model.generate(inputs_embeds=embeddings, attention_mask=mask)
        token_ids: list[list[int]] = generated.tolist()
        return token_ids

    def _encode_each_once(self, batch_size: int) -> Tensor:
        """(pictures, tokens, hidden)."""
        indices = list(range(len(self._pictures.files)))
        batches = [indices[i : i + batch_size] for i in range(0, len(indices), batch_size)]
        encoded = [self._model.get_image_features(pixel_values=self._pixels(batch)).pooler_output for batch in batches]
        return torch.cat(encoded)

    def _pixels(self, pictures: Sequence[int]) -> Tensor:
        images = [Image.open(self._pictures.files[i]) for i in pictures]
        pixels: Tensor = self._processor(images=images, return_tensors="pt")["pixel_values"]
        return pixels.to(self._model.device, self._model.dtype)

    def _set_length(self, max_new_tokens: int) -> None:
        # No end of sequence at all, rather than its suppression: the tokens are then those of ignore_eos.
        self._model.generation_config = GenerationConfig(
            max_new_tokens=max_new_tokens, min_new_tokens=max_new_tokens, do_sample=False, pad_token_id=_PAD,
            eos_token_id=None,
        )  # fmt: skip
