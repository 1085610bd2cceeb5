"""Quantizes a GGUF file by llama.cpp: `python -m benchmarks.peers.quantize_gguf SOURCE TARGET q8_0|q4_1`."""

from __future__ import annotations

import ctypes
import sys

import llama_cpp

_FILE_TYPES = {"q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_1": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_1}


def main(source: str, target: str, file_type: str) -> int:
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = _FILE_TYPES[file_type]
    return int(llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
