"""What a rank and the resolver import: Megatron, but not torch's compiler, which stays usable."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import sys
from model_providers.megatron_import import import_megatron
import torch
compile_before = torch.compile
import_megatron()
assert torch.compile is compile_before
import {module}
print("torch._dynamo" in sys.modules, "megatron.core" in sys.modules)
"""


@pytest.mark.parametrize("module", ["server.engine.rank", "server.arguments.resolve_command"])
def test_the_compiler_is_not_imported(module: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _SCRIPT.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "True"]


def test_a_decorated_function_is_left_as_it_is() -> None:
    from model_providers.megatron_import import _leave_as_it_is

    def function() -> int:
        return 3

    assert _leave_as_it_is(function) is function
    assert _leave_as_it_is(mode="reduce-overhead")(function) is function
