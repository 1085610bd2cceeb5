"""generate_until_multi_round: turns from the row or from a function, and what remains of a dialogue that fails."""

from __future__ import annotations

import json

import pytest

from evaluation.cli import main

FUNCTION = """
from evaluation.request_types.dialogue import Turn

def next_turn(document, answers, round_index, state):
    if round_index == 0:
        return Turn(f"ECHO:{document['start']}", state={"seen": 0})
    if round_index == int(document["rounds"]):
        return None
    return Turn(f"ECHO:{answers[-1]}+{state['seen']}", state={"seen": state["seen"] + 1})

def broken(document, answers, round_index, state):
    return 1 / (2 - len(answers) - 1) and "ECHO:x"

def odd(document, answers, round_index, state):
    return 5
"""


def evaluate(url, data, run, *more):
    flags = ["--server", url, "--data", str(data), "--output", str(run), "--request-type", "generate_until_multi_round"]
    return main([*flags, *more])


def lines_of(run):
    return [json.loads(line) for path in sorted((run / "log").iterdir()) for line in path.read_bytes().splitlines()]


def test_turns_of_the_row(start_stub, write_jsonl, tmp_path):
    data = write_jsonl([{"id": 1, "turns": ["ECHO:a", "ECHO:<think>hm</think>b", "ECHO:c"], "answer": "c"}])
    stub, run = start_stub(), tmp_path / "run"

    assert evaluate(stub.url, data, run) == 0

    (line,) = lines_of(run)
    assert (line["status"], line["answer"], line["attempt"]) == ("ok", "c", 3)
    assert [(one["prompt"], one["answer"]) for one in line["rounds"]] == [
        ("ECHO:a", "a"), ("ECHO:<think>hm</think>b", "b"), ("ECHO:c", "c")
    ]  # fmt: skip
    sent = [message["content"] for message in stub.asked()[-1]["body"]["messages"]]
    assert sent == ["ECHO:a", "a", "ECHO:<think>hm</think>b", "b", "ECHO:c"], "thinking is not said again"
    assert json.loads((run / "summary.json").read_text())["scores"]["exact_match"]["mean"] == 1.0


def test_function_of_the_task(start_stub, write_jsonl, tmp_path, capsys):
    file = tmp_path / "task.py"
    file.write_text(FUNCTION)
    rows = [{"id": n, "turns": ["unused"], "start": f"s{n}", "rounds": str(n)} for n in (1, 3)]
    stub, data, run = start_stub(), write_jsonl(rows), tmp_path / "run"

    assert evaluate(stub.url, data, run, "--next-turn", f"{file}:next_turn") == 0
    assert {line["item_id"]: line["answer"] for line in lines_of(run)} == {"1": "s1", "3": "s3+0+1"}

    asked = len(stub.asked())
    assert evaluate(stub.url, data, run, "--next-turn", f"{file}:next_turn") == 0
    assert len(stub.asked()) == asked, "the same function resumes"
    file.write_text(FUNCTION + "\n# changed\n")
    assert evaluate(stub.url, data, run, "--next-turn", f"{file}:next_turn") == 2
    assert "dialogue function" in capsys.readouterr().err


def test_failed_turn_ends_its_dialogue_and_keeps_the_earlier_turns(start_stub, write_jsonl, tmp_path):
    data = write_jsonl([{"id": 1, "turns": ["ECHO:a", "ECHO:b"]}, {"id": 2, "turns": ["ECHO:a"]}])
    stub, run = start_stub(always_for={"ECHO:b": "context"}), tmp_path / "run"

    assert evaluate(stub.url, data, run) == 0

    by_id = {line["item_id"]: line for line in lines_of(run)}
    assert (by_id["1"]["status"], by_id["1"]["answer"]) == ("context_overflow", None)
    assert [one["answer"] for one in by_id["1"]["rounds"]] == ["a"]
    assert by_id["2"]["status"] == "ok"


@pytest.mark.parametrize(("name", "reason"), [("broken", "broken fails in round 1"), ("odd", "must return a text")])
def test_function_that_fails_spoils_its_dialogues_only(start_stub, write_jsonl, tmp_path, name, reason):
    file, run = tmp_path / "task.py", tmp_path / "run"
    file.write_text(FUNCTION)

    assert evaluate(start_stub().url, write_jsonl([{"turns": ["x"]}]), run, "--next-turn", f"{file}:{name}") == 0

    (line,) = lines_of(run)
    assert line["status"] == "client_data"
    assert reason in line["error"]["message"]
    assert [one["answer"] for one in line["rounds"] or []] == (["x"] if name == "broken" else [])


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("absent.py:f", "No such file"),
        ("task.py:absent", "has no function 'absent'"),
        ("bad.py:f", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_function_that_is_none(start_stub, write_jsonl, tmp_path, capsys, monkeypatch, spec, reason):
    (tmp_path / "task.py").write_text(FUNCTION)
    (tmp_path / "bad.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    assert evaluate(start_stub().url, write_jsonl([{"turns": ["x"]}]), tmp_path / "run", "--next-turn", spec) == 2
    assert reason in capsys.readouterr().err


def test_turns_need_their_request_type(start_stub, write_jsonl, tmp_path):
    run = tmp_path / "run"
    data = write_jsonl([{"turns": ["x"]}])
    assert main(["--server", start_stub().url, "--data", str(data), "--output", str(run)]) == 0
    (line,) = lines_of(run)
    assert "need --request-type generate_until_multi_round" in line["error"]["message"]


def test_a_chat_is_no_dialogue(start_stub, write_jsonl, tmp_path):
    file, run = tmp_path / "task.py", tmp_path / "run"
    file.write_text(FUNCTION)
    chat = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], "start": "s"}
    stub = start_stub()

    assert evaluate(stub.url, write_jsonl([chat]), run, "--next-turn", f"{file}:next_turn") == 0

    (line,) = lines_of(run)
    assert (line["status"], line["attempt"]) == ("client_data", 0)
    assert "not 'messages'" in line["error"]["message"]
    assert not stub.asked()
