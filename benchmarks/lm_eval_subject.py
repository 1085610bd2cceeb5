"""lm-evaluation-harness's `hf` backend: log-likelihoods by padded batches of whole sequences."""

from __future__ import annotations

import os
import time

import psutil
import torch
from lm_eval.models.huggingface import HFLM

from benchmarks.errors import MeasurementError
from benchmarks.hugging_face_subject import DTYPES
from benchmarks.machine import peak_rss_bytes
from benchmarks.messages import Load, Loaded, Score, Scored


class LmEvalSubject:
    """load.model: a Hugging Face directory with its tokenizer."""

    def __init__(self, load: Load) -> None:
        rss_after_imports = psutil.Process().memory_info().rss
        torch.set_num_threads(load.threads)
        started = time.perf_counter()
        self._model = HFLM(
            pretrained=load.model, backend="causal", device=load.device, dtype=DTYPES[load.dtype], batch_size=1
        )
        self._prompts = load.prompts
        self.loaded = Loaded(
            load_seconds=time.perf_counter() - started,
            rss_after_imports_bytes=rss_after_imports,
            rss_ready_bytes=psutil.Process().memory_info().rss,
            weights_bytes=sum(p.numel() * p.element_size() for p in self._model.model.parameters()),
        )

    def score(self, command: Score) -> Scored:
        """The first prompts, by the method that its tasks end in; it sorts them by length itself."""
        if command.batch_size is None:
            raise MeasurementError("lm-eval needs a batch size")
        self._model.batch_size_per_gpu = command.batch_size
        requests = [
            (("", ""), prompt[:-count], prompt[-count:])
            for prompt, count in zip(self._prompts, command.num_scored_tokens, strict=False)
        ]
        started = time.perf_counter()
        answers = self._model._loglikelihood_tokens(requests, disable_tqdm=True)
        return Scored(
            seconds=time.perf_counter() - started,
            logprobs=[float(logprob) for logprob, _ in answers],
            peak_rss_bytes=peak_rss_bytes(os.getpid()),
        )
