"""The number of threads that a rank computes with is its document's, whatever its environment says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from server.config import ResolvedDocument

PROGRAM = """
import sys
from pathlib import Path
from model_providers.megatron_import import import_megatron
import_megatron()
import torch
from model_providers.parallel import join_world_of_one
from server.engine.rank import run_rank
join_world_of_one()
status = run_rank(Path(sys.argv[1]), Path(sys.argv[1]).with_name("socket"))
assert status == 1, "there is no such checkpoint"
print(torch.get_num_threads())
"""


def test_threads(make_document: Callable[..., ResolvedDocument], tmp_path: Path) -> None:
    file = tmp_path / "document.json"
    file.write_bytes(make_document(threads=3, device="cpu").to_json())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["3"], done.stderr
