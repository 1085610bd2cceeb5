"""A peer that needs no packages: it continues a prompt by its last token and the numbers after it."""

from __future__ import annotations

import os

from benchmarks.peers.worker_protocol import Engine, LoadRequest, PeerError, run_worker


class CountingEngine:
    def __init__(self, request: LoadRequest) -> None:
        if request.dtype == "bf16":
            raise PeerError("it counts in fp32 alone")

    def generate(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        os.write(1, b"a library that prints to standard output\n")
        return [[prompt[-1] + i for i in range(max_new_tokens)] for prompt in prompts]


def load(request: LoadRequest) -> Engine:
    return CountingEngine(request)


if __name__ == "__main__":
    run_worker(load)
