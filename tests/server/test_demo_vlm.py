"""The trained LLaVA of examples/: found out, explained, and right about held-out pictures, however it is served."""

from __future__ import annotations

import base64
import csv
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest

CHECKPOINT = Path(__file__).parents[2] / "examples" / "demo_vlm"
SAME_ROWS = 300

Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture(scope="module")
def serve(running_server: Callable[..., AbstractContextManager[str]]) -> Serve:
    """`serve(*flags)`: a server of the checkpoint, ready, by nothing but `--load` and the flags."""

    @contextmanager
    def run(*flags: str) -> Iterator[str]:
        with running_server(CHECKPOINT, *flags) as url:
            yield url
            stats = httpx.get(f"{url}/server_info").json()["stats"]
            assert stats["num_free_blocks"] == stats["num_blocks"]

    return run


def picture(index: int) -> str:
    spec = importlib.util.find_spec("easy_vqa")
    assert spec is not None and spec.origin is not None
    return base64.b64encode((Path(spec.origin).parent / f"data/test/images/{index}.png").read_bytes()).decode()


def evaluate(output: Path, *flags: str) -> dict[str, str]:
    """Row by row what was answered."""
    command = [sys.executable, "-m", "evaluation", "--data", "easy-vqa:test", "--output", str(output)]
    command += ["--max-new-tokens", "4", "--no-report", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-4000:]
    with (output / "export" / "results.tsv").open(newline="") as file:
        return {row["index"]: row["prediction"] for row in csv.DictReader(file, delimiter="\t")}


def accuracy(output: Path) -> float:
    score: float = json.loads((output / "summary.json").read_text())["scores"]["exact_match"]["mean"]
    return score


def first(answers: dict[str, str], count: int) -> dict[str, str]:
    return {str(index): answers[str(index)] for index in range(count)}


def test_it_is_a_llava_and_every_value_says_why() -> None:
    command = [sys.executable, "-m", "server", "--load", str(CHECKPOINT), "--print-resolved-args=json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["kind"] == "vlm"
    assert any("easy-vqa-demo" in reason for reason in document["reasons"])
    source = {argument["arg"]: argument["source"] for argument in document["arguments"]}
    assert {source[name] for name in ("vision_model_type", "pixel_shuffle", "patch_dim", "hidden_size")} == {
        "checkpoint"
    }


def test_a_thousand_held_out_questions_and_the_same_answers_however_they_are_asked(
    serve: Serve, tmp_path: Path
) -> None:
    with serve() as url:
        answers = evaluate(tmp_path / "64", "--server", url, "--limit", "1000", "--concurrency", "64")
        assert accuracy(tmp_path / "64") >= 0.99
        _answers_with_and_without_a_picture(url)
        alone = evaluate(tmp_path / "1", "--server", url, "--limit", str(SAME_ROWS), "--concurrency", "1")
    assert alone == first(answers, SAME_ROWS)
    in_process = evaluate(tmp_path / "in process", *_IN_PROCESS, "--limit", str(SAME_ROWS))
    assert in_process == alone
    for name, flags in _OTHER_WAYS.items():
        with serve(*flags) as url:
            other = evaluate(tmp_path / name, "--server", url, "--limit", str(SAME_ROWS))
        assert other == alone, name


_IN_PROCESS = ("--offline", "--load", str(CHECKPOINT))
_OTHER_WAYS: dict[str, Sequence[str]] = {
    "two ranks": ("--tensor-model-parallel-size", "2", "--threads", "1"),
    "nothing kept": ("--no-prefix-caching", "--image-cache-mb", "0.008", "--image-store-mb", "0"),
}


def _answers_with_and_without_a_picture(url: str) -> None:
    body = {"text": "what is the color of the shape?", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    without = httpx.post(f"{url}/generate", json=body).json()
    assert without["meta_info"]["image_tokens"] == 0
    colours = set()
    for index in (0, 40, 80, 0):
        reply = httpx.post(f"{url}/generate", json=body | {"image_data": picture(index)}).json()
        assert reply["meta_info"]["image_tokens"] == 16
        colours.add(reply["text"])
    assert len(colours) > 1
    assert reply["meta_info"]["images_encoded"] == 0


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_the_whole_held_out_split(serve: Serve, tmp_path: Path) -> None:
    with serve() as url:
        answers = evaluate(tmp_path / "run", "--server", url)
        alone = evaluate(tmp_path / "alone", "--server", url, "--concurrency", "1")
    assert len(answers) == 9673
    assert accuracy(tmp_path / "run") >= 0.99
    assert alone == answers
    assert evaluate(tmp_path / "in process", *_IN_PROCESS) == answers
    for name, flags in _OTHER_WAYS.items():
        with serve(*flags) as url:
            assert evaluate(tmp_path / name, "--server", url) == answers, name
