"""llama.cpp in this process, through its C interface: all prompts are sequences of one context, decoded together."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import llama_cpp
import numpy as np

from benchmarks.peers.worker_protocol import Engine, LoadRequest, PeerError, run_worker

_MAX_MODEL_LEN = 512
_BATCH_TOKENS = 2048  # its defaults: as many tokens in one call, and so many of them computed at a time
_MICROBATCH_TOKENS = 512


class _Entry(NamedTuple):
    token: int
    position: int
    sequence: int
    wants_logits: bool


class LlamaCppEngine:
    """In fp32 keys and values are fp32, too, so that tokens can be compared; else they are fp16, as by default."""

    def __init__(self, request: LoadRequest) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            str(request.model).encode(), llama_cpp.llama_model_default_params()
        )
        if self._model is None:
            raise PeerError(f"llama.cpp cannot read {request.model}")
        self._context = llama_cpp.llama_init_from_model(self._model, _context_params(request))
        if self._context is None:
            raise PeerError("llama.cpp could not allocate its context")
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self._batch = llama_cpp.llama_batch_init(_BATCH_TOKENS, 0, 1)

    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        longest = max(map(len, prompts)) + max_new_tokens - 1  # the last token is not computed
        if longest > _MAX_MODEL_LEN:
            raise PeerError(f"sequences of {longest} tokens do not fit into {_MAX_MODEL_LEN}; lower --max-new-tokens")
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
        token_ids: list[list[int]] = [[] for _ in prompts]
        entries = _prompt_entries(prompts)
        while batch := list(islice(entries, _BATCH_TOKENS)):
            self._compute(batch, token_ids)
        for _ in range(max_new_tokens - 1):
            self._compute(_next_entries(prompts, token_ids), token_ids)
        return token_ids

    def _compute(self, entries: list[_Entry], token_ids: list[list[int]]) -> None:
        """One call, and the most likely token of each entry that wants logits goes to its sequence."""
        batch = self._batch
        batch.n_tokens = len(entries)
        for i, entry in enumerate(entries):
            batch.token[i] = entry.token
            batch.pos[i] = entry.position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = entry.sequence
            batch.logits[i] = entry.wants_logits
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            raise PeerError(f"llama_decode returned {status}")
        wanted = [entry.sequence for entry in entries if entry.wants_logits]
        if not wanted:
            return
        address = ctypes.cast(llama_cpp.llama_get_logits(self._context), ctypes.POINTER(ctypes.c_float))
        logits = np.ctypeslib.as_array(address, (len(wanted), self._vocab_size))
        for sequence, token in zip(wanted, logits.argmax(axis=1).tolist(), strict=True):
            token_ids[sequence].append(token)


def _prompt_entries(prompts: list[list[int]]) -> Iterator[_Entry]:
    for sequence, prompt in enumerate(prompts):
        for position, token in enumerate(prompt):
            yield _Entry(token, position, sequence, position == len(prompt) - 1)


def _next_entries(prompts: Iterable[list[int]], token_ids: list[list[int]]) -> list[_Entry]:
    return [
        _Entry(generated[-1], len(prompt) + len(generated) - 1, sequence, True)
        for sequence, (prompt, generated) in enumerate(zip(prompts, token_ids, strict=True))
    ]


def _context_params(request: LoadRequest) -> llama_cpp.llama_context_params:
    params = llama_cpp.llama_context_default_params()
    params.n_seq_max = request.max_requests
    params.n_ctx = _MAX_MODEL_LEN * request.max_requests
    params.n_batch = _BATCH_TOKENS
    params.n_ubatch = _MICROBATCH_TOKENS
    params.n_threads = params.n_threads_batch = request.threads
    if request.dtype == "fp32":
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
    return params


def load(request: LoadRequest) -> Engine:
    return LlamaCppEngine(request)


if __name__ == "__main__":
    run_worker(load)
