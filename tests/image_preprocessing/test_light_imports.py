"""The HTTP process imports every module here: none may load a model library."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import image_preprocessing


def test_every_module_is_free_of_torch(tmp_path):
    modules = [f"image_preprocessing.{module.name}" for module in pkgutil.iter_modules(image_preprocessing.__path__)]
    assert "image_preprocessing.pipeline" in modules
    code = f"import {', '.join(modules)}, sys; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    command = [sys.executable, "-I", "-B", "-c", code]
    loaded = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()
    assert {"numpy", "PIL"} < set(loaded)
    assert not {"torch", "megatron", "transformers", "server", "model_providers"} & set(loaded)
