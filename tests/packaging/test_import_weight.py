"""What an import must not drag in: the HTTP process and the evaluation client stay light."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MODEL_LIBRARIES = {"torch", "megatron", "transformers"}


def top_level_modules_after(statement: str, cwd: Path) -> set[str]:
    code = (
        f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", code], cwd=cwd, capture_output=True, text=True, check=True, timeout=120
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "module",
    [
        "server.cli",
        "server.launch",
        "server.ipc",
        "server.config",
        "server.api",
        "image_preprocessing",
        "evaluation.cli",
    ],
)
def test_import_leaves_model_libraries_out(module: str, tmp_path: Path) -> None:
    loaded = top_level_modules_after(f"import {module}", tmp_path)
    assert module.partition(".")[0] in loaded
    assert not loaded & MODEL_LIBRARIES


def test_command_line_does_not_load_what_a_subcommand_needs(tmp_path: Path) -> None:
    loaded = top_level_modules_after("import server.cli", tmp_path)
    assert not loaded & {"fastapi", "aiohttp", "evaluation", "benchmarks", "numpy"}
