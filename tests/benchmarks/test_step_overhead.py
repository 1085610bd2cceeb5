"""What a step costs outside the kernels, at a small batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = """
import json, sys
from pathlib import Path
from benchmarks.step_overhead import measure
print(json.dumps(measure(Path(sys.argv[1]), "fp32", 1, (3,))))
"""


def test_a_small_batch_is_measured(tiny_checkpoint: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tiny_checkpoint)], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    (point,) = result["by_batch"]
    assert point["step_ms"]["batch_size"] == point["outside_ms"]["batch_size"] == 3
    assert point["step_ms"]["num_steps"] == 31  # the first of 32 tokens comes from prefill
    assert 0 < point["outside_ms"]["median"] < point["step_ms"]["median"]
