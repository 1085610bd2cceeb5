"""The kernels of every target that is built and that this CPU can run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from model_providers.kernels import build
from model_providers.kernels.library import Kernels, built_targets, load_kernels

# `make sanitize` runs these tests on libraries that are compiled with AddressSanitizer, which lie elsewhere.
if "KERNELS_UNDER_TEST" in os.environ:
    build.LIBRARIES = Path(os.environ["KERNELS_UNDER_TEST"])


@pytest.fixture(scope="session", params=built_targets() or [None])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    assert request.param is not None, "no kernels are built: `make env` needs a C++ compiler"
    loaded = load_kernels(request.param)
    assert loaded is not None
    return loaded
