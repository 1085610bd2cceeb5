"""`infer_data_job` as VLMEvalKit's callers use it: a DataFrame in, a result file out, and calls that go on."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import openpyxl
import pandas
import pytest

import evaluation
from evaluation.datasets.frame import dataset_of_frame
from evaluation.errors import RunAbortedError, RunDirectoryError, SetupError
from evaluation.run_directory.log_reader import read_logs

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Dataset:
    """What VLMEvalKit's datasets have of themselves."""

    dataset_name = "Tiny_TEST"

    def __init__(self, folder: Path, count: int = 8) -> None:
        (folder / "p.png").write_bytes(PNG)
        self.folder = folder
        self.data = pandas.DataFrame(
            {
                "index": range(count),
                "image": ["not exported"] * count,
                "question": [f"ECHO:answer {number}" for number in range(count)],
                "answer": ["007"] * count,
                "hint": [float("nan")] * count,
            }
        )

    def build_prompt(self, row: Any) -> list[dict[str, str]]:
        return [{"type": "image", "value": str(self.folder / "p.png")}, {"type": "text", "value": row["question"]}]


@pytest.fixture
def dataset(tmp_path):
    return Dataset(tmp_path)


@pytest.fixture
def vlm(start_stub):
    return start_stub(kind="vlm")


def result_of(folder: Path, suffix: str = "xlsx") -> pandas.DataFrame:
    path = folder / f"model_Tiny_TEST.{suffix}"
    match suffix:
        case "xlsx":
            return pandas.read_excel(path, dtype={"answer": str})
        case "tsv":
            return pandas.read_csv(path, sep="\t", dtype={"answer": str})
    return pandas.DataFrame(json.loads(path.read_text()))


@pytest.mark.parametrize("suffix", ["xlsx", "tsv", "json"])
def test_result_file_in_the_format_that_is_asked_for(vlm, dataset, tmp_path, monkeypatch, suffix):
    if suffix != "xlsx":  # the default
        monkeypatch.setenv("PRED_FORMAT", suffix)

    assert evaluation.infer_data_job(vlm.url, str(tmp_path), "model", dataset) == vlm.url

    result = result_of(tmp_path, suffix)
    assert list(result.columns) == ["index", "question", "answer", "hint", "prediction"]
    assert list(result["index"]) == list(range(8))
    assert list(result["prediction"]) == [f"answer {number}" for number in range(8)]
    assert list(result["answer"]) == ["007"] * 8
    content = vlm.asked()[0]["body"]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["image_url", "text"]
    assert "image" in dataset.data.columns, "the caller's frame stays as it was"


def test_a_second_call_asks_nothing(vlm, dataset, tmp_path):
    for _ in range(2):
        evaluation.infer_data_job(vlm.url, tmp_path, "model", dataset)
    assert len(vlm.asked()) == 8


def test_an_earlier_result_file_is_taken_over_and_marked(vlm, dataset, tmp_path):
    """Made by another program: two answers, one error text, one row that was never asked."""
    earlier = dataset.data.drop(columns="image").head(4)
    earlier["prediction"] = ["old zero", "old one", "Failed to obtain answer via API.", None]
    earlier.to_excel(tmp_path / "model_Tiny_TEST.xlsx", index=False)

    evaluation.infer_data_job(vlm.url, tmp_path, "model", dataset)

    predictions = list(result_of(tmp_path)["prediction"])
    assert predictions == ["old zero", "old one", *(f"answer {number}" for number in range(2, 8))]
    assert len(vlm.asked()) == 6
    records = read_logs(tmp_path / "model_Tiny_TEST.run" / "log").records
    imported = {record.index: record.status.value for record in records if record.imported_from}
    assert imported == {"0": "ok", "1": "ok", "2": "server_5xx"}


def test_ignore_failed_leaves_failed_rows_as_they_are(start_stub, dataset, tmp_path):
    broken = start_stub(kind="vlm", always_for={"ECHO:answer 3": "400"})
    evaluation.infer_data_job(broken.url, tmp_path, "model", dataset)
    assert pandas.isna(result_of(tmp_path)["prediction"][3]), "an error text is no prediction"

    earlier = result_of(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    earlier["prediction"] = ["Failed to obtain answer via API."] * 8
    earlier.to_excel(other / "model_Tiny_TEST.xlsx", index=False)
    repaired = start_stub(kind="vlm")
    evaluation.infer_data_job(repaired.url, other, "model", dataset, ignore_failed=True)
    assert not repaired.asked()
    evaluation.infer_data_job(repaired.url, other, "model", dataset)
    assert len(repaired.asked()) == 8
    assert result_of(other)["prediction"][3] == "answer 3"


def test_as_many_at_once_as_api_nproc_says(start_stub, dataset, tmp_path):
    """Nobody is answered before four wait together."""
    stub = start_stub(kind="vlm", barrier=4)
    evaluation.infer_data_job(stub.url, tmp_path, "model", dataset, api_nproc=4)
    assert len(stub.asked()) == 8


def test_verbose_prints_every_outcome(vlm, dataset, tmp_path, capsys):
    evaluation.infer_data_job(vlm.url, tmp_path, "model", dataset, verbose=True)
    assert "5: ok: answer 5" in capsys.readouterr().err


def test_what_is_refused(vlm, dataset, tmp_path, monkeypatch):
    with pytest.raises(SetupError, match="use_vllm=True: this engine batches by itself"):
        evaluation.infer_data_job(vlm.url, tmp_path, "model", dataset, use_vllm=True)
    monkeypatch.setenv("PRED_FORMAT", "pkl")
    with pytest.raises(SetupError, match="PRED_FORMAT=pkl"):
        evaluation.infer_data_job(vlm.url, tmp_path, "model", dataset)


def test_a_prompt_that_cannot_be_built_spoils_its_row_alone(vlm, dataset, tmp_path, capsys):
    dataset.build_prompt = lambda row: [{"type": "video", "value": "x"}] if row["index"] == 2 else row["question"]

    evaluation.infer_data_job(vlm.url, tmp_path, "model", dataset)

    assert "row 3: build_prompt: a part of a prompt is text or an image, not 'video'" in capsys.readouterr().err
    assert pandas.isna(result_of(tmp_path)["prediction"][2])
    assert result_of(tmp_path)["prediction"][3] == "answer 3"


def test_thinking_as_vlmevalkit_splits_it(start_stub, dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("SPLIT_THINK", "1")
    dataset.data["question"] = [f"ECHO:<think>so</think> {number}" for number in range(8)]
    evaluation.infer_data_job(start_stub(kind="vlm").url, tmp_path, "model", dataset)
    result = result_of(tmp_path)
    assert list(result["prediction"].astype(str)) == [str(number) for number in range(8)]
    assert set(result["thinking"]) == {"so"}


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {folder!r})
from test_data_job import Dataset
import evaluation
folder = Path(sys.argv[2])
evaluation.infer_data_job(sys.argv[1], folder, "model", Dataset(folder.parent, count=24))
"""


def test_ranks_share_the_work_and_the_first_writes_the_file(vlm, tmp_path):
    (tmp_path / "job.py").write_text(SCRIPT.format(folder=str(Path(__file__).parent)))
    work = tmp_path / "work"
    work.mkdir()
    Dataset(tmp_path)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "job.py"), vlm.url, str(work)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"},
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for rank in range(3)
    ]
    assert [rank.wait(60) for rank in ranks] == [0, 0, 0]
    assert len(vlm.asked()) == 24
    assert list(result_of(work)["prediction"]) == [f"answer {number}" for number in range(24)]


def test_rows_without_an_outcome_are_said(start_stub, dataset, tmp_path, monkeypatch):
    """Rank 0 of two waits in vain for rank 1, which never starts."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("evaluation.data_job.RANKS_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(RunAbortedError, match="of 8 rows have no outcome yet; the same call goes on with them"):
        evaluation.infer_data_job(start_stub(kind="vlm").url, tmp_path, "model", dataset)
    assert not (tmp_path / "model_Tiny_TEST.xlsx").exists()


def test_an_earlier_table_with_a_torn_row_counts_as_far_as_it_goes(vlm, dataset, tmp_path, monkeypatch):
    monkeypatch.setenv("PRED_FORMAT", "tsv")
    (tmp_path / "model_Tiny_TEST.tsv").write_text("index\tquestion\tprediction\n0\tq\told zero\n1\tq\n")

    evaluation.infer_data_job(vlm.url, tmp_path, "model", dataset)

    assert list(result_of(tmp_path, "tsv")["prediction"])[:2] == ["old zero", "answer 1"]
    assert len(vlm.asked()) == 7


@pytest.mark.parametrize("is_empty", [True, False])
def test_an_earlier_file_that_is_no_table_is_said(vlm, dataset, tmp_path, monkeypatch, is_empty):
    if is_empty:
        openpyxl.Workbook().save(tmp_path / "model_Tiny_TEST.xlsx")
    else:
        monkeypatch.setenv("PRED_FORMAT", "tsv")
        (tmp_path / "model_Tiny_TEST.tsv").write_text("index\tprediction\n0\told\tzero\n")
    with pytest.raises(RunDirectoryError, match="holds no earlier answers; move it away"):
        evaluation.infer_data_job(vlm.url, tmp_path, "model", dataset)
    assert not vlm.asked()


def test_missing_values_of_every_kind_are_empty(tmp_path):
    dataset = Dataset(tmp_path, count=5)
    dataset.data["hint"] = pandas.Series(
        [pandas.NA, pandas.NaT, float("nan"), None, numpy.array(["an", "array"])], dtype=object
    )
    hints = [item.columns["hint"] for item in dataset_of_frame(dataset).items]
    assert hints == ["", "", "", "", "['an' 'array']"]
