"""`infer_data_job` on an engine in the process, two ranks under torchrun, two jobs: what a server answers."""

from __future__ import annotations

import subprocess
import sys

import pandas
import pytest

JOB = """
import sys
from pathlib import Path
import pandas
import evaluation
from evaluation import data_job

data_job.MAX_NEW_TOKENS = 8


class Dataset:
    def __init__(self, name, pictures, count):
        self.dataset_name = name
        self.data = pandas.DataFrame({"index": range(count), "question": [f"{name} {n}?" for n in range(count)]})
        self.pictures = sorted(Path(pictures).glob("*.png"))

    def build_prompt(self, row):
        picture = self.pictures[row["index"] % len(self.pictures)]
        return [{"type": "image", "value": str(picture)}, {"type": "text", "value": row["question"]}]


def run(model, work, pictures):
    for name, count in (("First", 7), ("Second", 4)):
        assert evaluation.infer_data_job(model, work, "tiny", Dataset(name, pictures, count)) is model


if __name__ == "__main__":
    checkpoint, work, pictures, *flags = sys.argv[1:]
    with evaluation.OfflineEngine(checkpoint, *flags) as engine:
        run(engine, work, pictures)
"""


@pytest.mark.proof
def test_two_ranks_and_two_jobs(vlm_server, vlm_checkpoint, picture_questions, engine_flags, tmp_path):
    pictures, script = picture_questions(1).parent, tmp_path / "job.py"
    script.write_text(JOB)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]

    done = subprocess.run(
        [*torchrun, str(vlm_checkpoint), str(tmp_path / "engine"), str(pictures), *engine_flags],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    of_server = [sys.executable, "-c", JOB.split("if __name__")[0] + "run(*sys.argv[1:])"]
    subprocess.run([*of_server, vlm_server.url, str(tmp_path / "url"), str(pictures)], check=True, timeout=120)

    for name, count in (("First", 7), ("Second", 4)):
        results = [pandas.read_excel(tmp_path / kind / f"tiny_{name}.xlsx") for kind in ("engine", "url")]
        assert len(results[0]) == count
        assert results[0].equals(results[1])
        assert results[0]["prediction"].notna().all()
