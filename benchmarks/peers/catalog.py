"""Which peers there are, and how each is started."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.peers import models
from benchmarks.peers.environment import PeerEnvironment

ConvertModel = Callable[[PeerEnvironment, Path, str], Path]


@dataclass(frozen=True)
class ServerOptions:
    """Of a peer's HTTP server."""

    model: Path
    dtype: str
    threads: int
    concurrency: int
    port: int


@dataclass(frozen=True)
class Peer:
    """distributions: whose versions are stated; the first is the peer itself.

    variant_of: the peer whose environment and worker it shares, None for one with its own. Only who names a variant
    compares with it.

    serve: the command of its server, which answers GET /health with 200 once it is ready and speaks OpenAI's
    completions; None for a peer without one. request_fields: what turns its prompt cache off in a request.
    """

    name: str
    distributions: tuple[str, ...]
    convert: ConvertModel
    variables: Callable[[PeerEnvironment, int], Mapping[str, str]]
    serve: Callable[[PeerEnvironment, ServerOptions], list[str]] | None = None
    request_fields: Mapping[str, object] = field(default_factory=dict)
    variant_of: str | None = None

    @property
    def environment(self) -> PeerEnvironment:
        return PeerEnvironment.of(self.variant_of or self.name)

    def worker_command(self) -> list[str]:
        return self.environment.worker_command(f"{self.variant_of or self.name}_worker")

    def environment_variables(self, threads: int) -> dict[str, str]:
        """threads: it may use."""
        number = str(threads)
        counts = {"OMP_NUM_THREADS": number, "MKL_NUM_THREADS": number}
        return counts | self.environment.variables() | dict(self.variables(self.environment, threads))


def _vllm_variables(environment: PeerEnvironment, threads: int) -> dict[str, str]:
    """Intel's OpenMP is loaded first, as vLLM's installation guide for CPUs asks for."""
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads])),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    openmp = environment.directory / "lib" / "libiomp5.so"
    if openmp.is_file():
        variables["LD_PRELOAD"] = str(openmp)
    return variables


def _vllm_server(environment: PeerEnvironment, options: ServerOptions) -> list[str]:
    return [
        *(environment.python, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(options.model), "--dtype", {"fp32": "float32", "bf16": "bfloat16"}[options.dtype]),
        *("--max-model-len", "2048", "--max-num-seqs", str(max(32, options.concurrency))),
        *("--no-enable-prefix-caching", "--host", "127.0.0.1", "--port", str(options.port)),
    ]


def _no_variables(environment: PeerEnvironment, threads: int) -> dict[str, str]:
    del environment, threads
    return {}


def _llama_cpp_variables(environment: PeerEnvironment, threads: int) -> dict[str, str]:
    del threads
    return models.llama_cpp_libraries(environment)


def _llama_cpp_server(environment: PeerEnvironment, options: ServerOptions) -> list[str]:
    threads = str(options.threads)
    slots = options.concurrency
    cache = ("--cache-type-k", "f32", "--cache-type-v", "f32") if options.dtype == "fp32" else ()
    return [
        *(str(environment.directory / "build" / "bin" / "llama-server"), "--model", str(options.model)),
        *("--parallel", str(slots), "--ctx-size", str(1024 * slots), *cache),
        *("--batch-size", "2048", "--ubatch-size", "512", "--threads", threads, "--threads-batch", threads),
        *("--host", "127.0.0.1", "--port", str(options.port)),
    ]


VLLM = Peer(
    name="vllm",
    distributions=("vllm-cpu", "torch"),
    convert=models.hf_directory_itself,
    variables=_vllm_variables,
    serve=_vllm_server,
)
OPENVINO = Peer(
    name="openvino",
    distributions=("openvino-genai", "openvino", "optimum-intel"),
    convert=models.openvino_directory,
    variables=_no_variables,
)
LLAMA_CPP = Peer(
    name="llama_cpp",
    distributions=("llama-cpp-python",),
    convert=models.gguf_file,
    variables=_llama_cpp_variables,
    serve=_llama_cpp_server,
    request_fields={"cache_prompt": False},
)


def _quantized_llama_cpp(file_type: str) -> Peer:
    def convert(environment: PeerEnvironment, hf_directory: Path, dtype: str) -> Path:
        del dtype  # of keys and values alone
        return models.quantized_gguf_file(environment, hf_directory, file_type)

    return replace(LLAMA_CPP, name=f"llama_cpp_{file_type}", convert=convert, variant_of=LLAMA_CPP.name)


QUANTIZED_LLAMA_CPP = tuple(_quantized_llama_cpp(file_type) for file_type in ("q8_0", "q4_1"))
PEERS = {peer.name: peer for peer in (VLLM, OPENVINO, LLAMA_CPP, *QUANTIZED_LLAMA_CPP)}
TRANSFORMERS = "transformers"
"""Needs no environment: it is installed beside this project."""

PEER_NAMES = (*PEERS, TRANSFORMERS)
