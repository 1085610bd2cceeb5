"""One pool of threads with torch's, and a choice of kernels that is honoured or refused."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

import pytest
import torch

from model_providers.errors import ModelProviderError
from model_providers.kernels import build, library
from model_providers.kernels.library import Kernels, built_targets, kernels_for, load_kernels, supported_targets


def mapped_openmp_libraries() -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[-1] for line in lines if "gomp" in line or "libomp" in line or "iomp" in line}


def test_kernels_use_the_openmp_library_that_torch_brought(kernels: Kernels) -> None:
    assert kernels.target in supported_targets()
    assert len(mapped_openmp_libraries()) == 1
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            # The symbol that the kernels were bound to, as any library without one of its own finds it.
            assert ctypes.CDLL(None).omp_get_max_threads() == count
    finally:
        torch.set_num_threads(threads)


def test_auto_takes_the_fastest_built() -> None:
    chosen = load_kernels("auto")
    assert chosen is not None
    assert chosen.target == built_targets()[0]
    assert load_kernels("off") is None


def test_only_dtypes_and_devices_that_have_kernels_get_them() -> None:
    assert kernels_for("auto", torch.float16, torch.device("cpu")) is None
    assert kernels_for("auto", torch.float32, torch.device("meta")) is None
    assert kernels_for("auto", torch.bfloat16, torch.device("cpu")) is not None


def test_a_target_that_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "LIBRARIES", tmp_path)
    with pytest.raises(ModelProviderError, match=r"--kernels portable: not built.*kernels\.build"):
        load_kernels("portable")
    monkeypatch.setattr(library, "supported_targets", lambda: ["portable"])
    with pytest.raises(ModelProviderError, match="--kernels avx512: this CPU runs portable"):
        load_kernels("avx512")


def test_without_built_kernels_torch_serves_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "LIBRARIES", tmp_path)
    library._nothing_built.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert load_kernels("auto") is None
        assert load_kernels("auto") is None
    assert [record.message for record in caplog.records if "C++ compiler" in record.message] == [caplog.messages[0]]


def test_no_compiler_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="no-such-compiler not found; install one, or set CXX"):
        build.build(["portable"])
