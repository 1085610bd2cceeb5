"""Every state of the thinking split, and VLMEvalKit's reading of the same texts."""

from __future__ import annotations

import json

import pytest

from evaluation.cli import main
from evaluation.thinking import Split, ThinkingSplit


@pytest.mark.parametrize(
    ("text", "split"),
    [
        (" B. ", ("B.", "", "none")),
        ("<think>A or B?</think> B ", ("B", "A or B?", "closed")),
        ("Let me see. <think>hm</think>B", ("B", "hm", "closed")),
        ("A or B?</think>B", ("B", "A or B?", "close_only")),
        ("<think>A or B", ("", "A or B", "unclosed")),
        ("B <think>or", ("", "B or", "unclosed")),
        ("<think>a</think>B<think>c", ("", "aBc", "unclosed")),
        ("<think>a</think>x<think>b</think>C", ("C", "axb", "multiple")),
        ("<think>a</think></think>C", ("C", "a", "multiple")),
        ("<think></think>", ("", "", "closed")),
        ("</think>", ("", "", "close_only")),
        ("", ("", "", "none")),
    ],
)
def test_states(text, split):
    assert ThinkingSplit().split(text) == Split(*split)


def test_other_tags_and_none():
    tags = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
    assert ThinkingSplit(tags=tags).split("[THINK]a[/THINK]b") == Split("b", "a", "closed")
    assert ThinkingSplit().split("[THINK]a[/THINK]b").answer == "[THINK]a[/THINK]b"
    assert ThinkingSplit("off").split("<think>a</think>b") == Split("<think>a</think>b", "", "none")


def test_what_the_server_told_apart_wins():
    assert ThinkingSplit().split("</think>B", "because") == Split("</think>B", "because", "server")


@pytest.mark.parametrize(
    ("text", "answer", "reasoning"),
    [
        ("B", "B", ""),
        ("<think>A", "<think>A", ""),
        ("x<think>a</think>B", "B", "a"),
        ("a</think>B", "B", "a"),
        ("<think>a</think>b</think>C", "C", "<think>a</think>b"),
    ],
)
def test_compatible_mode(text, answer, reasoning):
    assert ThinkingSplit("vlmevalkit").split(text)[:2] == (answer, reasoning)


ROWS = [
    {"id": "closed", "question": "ECHO:<think>A?</think>B", "answer": "B"},
    {"id": "unclosed", "question": "ECHO:<think>The answer is B", "answer": "B"},
]


def scores_after(stub, data, run, *more):
    assert main(["--server", stub.url, "--data", str(data), "--output", str(run), "--no-report", *more]) == 0
    summary = json.loads((run / "summary.json").read_text())
    return summary["scores"]["exact_match"]["mean"], summary["thinking"]["states"], summary["failed_by_class"]


def test_answers_are_scored_without_thinking_and_an_old_run_can_be_split_again(
    start_stub, write_jsonl, tmp_path, monkeypatch
):
    stub, data, run = start_stub(), write_jsonl(ROWS), tmp_path / "run"

    assert scores_after(stub, data, run) == (0.5, {"closed": 1, "unclosed": 1}, {"empty": 1})
    lines = [json.loads(line) for path in (run / "log").iterdir() for line in path.read_text().splitlines()]
    closed = next(line for line in lines if line["item_id"] == "closed")
    assert closed["text"] == "<think>A?</think>B"
    assert (closed["reasoning"], closed["thinking"], closed["answer"]) == ("A?", "closed", "B")

    assert scores_after(stub, data, run, "--thinking", "off", "--retry-failed") == (0.0, {"none": 2}, {})
    monkeypatch.setenv("SPLIT_THINK", "0")
    assert scores_after(stub, data, run, "--retry-failed") == (0.5, {"closed": 1, "none": 1}, {})
    assert len(stub.asked()) == 2, "splitting again asks nobody"


def test_reasoning_content_of_the_server(start_stub, write_jsonl, tmp_path):
    stub, run = start_stub(reasoning="I think."), tmp_path / "run"
    data = write_jsonl([{"id": 1, "question": "ECHO:B", "answer": "B"}])
    assert main(["--server", stub.url, "--data", str(data), "--output", str(run)]) == 0
    (line,) = [json.loads(path.read_text()) for path in (run / "log").iterdir()]
    assert (line["answer"], line["reasoning"], line["thinking"]) == ("B", "I think.", "server")
