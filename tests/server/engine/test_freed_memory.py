"""Memory of one step serves the next. In a process of its own: the setting lasts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from server.engine.model_runner import MOST_LOGITS

PROGRAM = """
import resource, sys, torch
from server.engine.freed_memory import keep_freed_memory, return_freed_memory
return_freed_memory()
keep_freed_memory()
def steps(count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        blocks = [torch.empty(int(sys.argv[1])).fill_(1.0) for _ in range(4)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
steps(10)
print(steps(20) * resource.getpagesize())
"""


# The second is more than the C library keeps: there the count must find what the first must not have.
@pytest.mark.parametrize(("numbers", "is_kept"), [(MOST_LOGITS, True), (4 * MOST_LOGITS, False)])
def test_what_a_step_frees_the_next_one_uses(numbers: int, is_kept: bool) -> None:
    command = [sys.executable, "-c", PROGRAM, str(numbers)]
    touched = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert touched < numbers if is_kept else touched >= 20 * 4 * 4 * numbers
