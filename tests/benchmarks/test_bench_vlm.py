"""`megaserve bench vlm` and `bench images` at a small size: Hugging Face's answers, and complete results."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.cli import main
from benchmarks.image_memory import distinct_pictures


def test_questions_about_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    flags = ("--num-questions", "50", "--repetitions", "2", "--quiet-wait", "0", "--threads", "1", "--dtype", "fp32")
    assert main(["vlm", *flags, "--json", str(file)]) == 0
    assert "times the better of Hugging Face" in capsys.readouterr().out
    result = json.loads(file.read_text())
    theirs = result["hugging_face"]
    assert theirs["num_equal_answers"] == 50
    usual = {name: rate for name, rate in theirs["questions_per_second"].items() if "reused" not in name}
    assert theirs["ratio"] == pytest.approx(result["questions_per_second"] / max(usual.values()))
    assert set(theirs["questions_per_second"]) == {"16", "32", "16, features reused", "32, features reused"}
    # Every question on a picture but the first finds its 16 places computed, in both repetitions anew.
    assert result["cached_tokens"] == 16 * (50 - result["workload"]["num_pictures"])


@pytest.mark.proof
def test_memory_over_new_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    assert main(["images", "--num-images", "60", "--threads", "1", "--json", str(file)]) == 0
    assert "growth over the second half" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert result["num_encoded"] >= 60
    assert len(result["pss_bytes"]) == 21
    assert result["growth_second_half_bytes"] == result["pss_bytes"][20] - result["pss_bytes"][10]


def test_pictures_are_png_files_and_distinct() -> None:
    files = list(distinct_pictures(5))
    assert len(set(files)) == 5
    for file in files:
        image = Image.open(io.BytesIO(file))
        assert (image.format, image.size, image.mode) == ("PNG", (64, 64), "RGB")
        image.load()
