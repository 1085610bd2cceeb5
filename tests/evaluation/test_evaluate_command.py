"""The command from end to end against a stub server: first run, resume, refusals, exit status."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluation.cli import main

LOGLIKELIHOOD = ("--request-type", "loglikelihood")
DIALOGUE = ("--request-type", "generate_until_multi_round")


def evaluate(url: str, data: Path, run: Path, *more: str) -> int:
    return main(["--server", url, "--data", str(data), "--output", str(run), "--no-report", *more])


def summary_of(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted((run / "log").iterdir()) for line in path.read_bytes().splitlines()]


def test_first_run_writes_log_summary_scores_and_export(start_stub, mcq_file, tmp_path, capsys):
    stub, run = start_stub(), tmp_path / "run"

    assert evaluate(stub.url, mcq_file(40), run) == 0

    lines = lines_of(run)
    assert len(lines) == 40
    assert all({"key", "item_id", "status", "attempt", "text", "answer", "crc"} <= line.keys() for line in lines)
    assert {line["attempt"] for line in lines} == {1}
    summary = summary_of(run)
    assert (summary["status"], summary["items"], summary["done"], summary["failed"]) == ("complete", 40, 40, 0)
    assert summary["scores"]["mcq"]["n"] == 40
    assert 0 < summary["scores"]["mcq"]["mean"] < 1
    assert summary["requests_per_second"] > 0 and summary["output_tokens_per_second"] > 0
    scored = [json.loads(line) for line in (run / "scores" / "mcq.jsonl").read_text().splitlines()]
    assert {row["rule"] for row in scored} >= {"letter", "miss"}
    assert sum(row["score"] for row in scored) / 40 == pytest.approx(summary["scores"]["mcq"]["mean"])
    header = (run / "export" / "results.tsv").read_text().split("\n", 1)[0]
    assert header.split("\t") == ["index", "question", "A", "B", "C", "D", "answer", "category", "prediction"]
    captured = capsys.readouterr()
    assert "tiny (gpt, fp32) from /models/tiny, iteration 7" in captured.err
    assert "complete: 40 of 40 answered" in captured.out
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["model"]["checkpoint"]["iteration"] == 7
    assert manifest["rows"]["item_ids"][:2] == ["q0", "q1"]


def test_what_is_sent(start_stub, write_jsonl, tmp_path):
    rows = [
        {"id": "m", "question": "Which?", "choices": ["x", "y"], "answer": "A"},
        {
            "id": "c",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi ECHO:yo"}],
        },
        {"id": "p", "prompt": "Once upon ECHO: a time", "answer": "A time."},
    ]
    stub, run = start_stub(), tmp_path / "run"

    sampling = ("--max-new-tokens", "9", "--temperature", "0.5", "--top-p", "0.9", "--seed", "3", "--concurrency", "1")
    assert evaluate(stub.url, write_jsonl(rows), run, *sampling) == 0

    by_first_word = {entry["question"].split()[0]: entry for entry in stub.asked()}
    mcq, chat, raw = by_first_word["Question:"], by_first_word["Hi"], by_first_word["Once"]
    assert mcq["path"] == chat["path"] == "/v1/chat/completions"
    assert mcq["question"].startswith("Question: Which?\nOptions:\nA. x\nB. y\n")
    assert {name: mcq["body"][name] for name in ("model", "max_tokens", "temperature", "top_p", "seed")} == {
        "model": "tiny",
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
    }
    assert chat["body"]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert raw["path"] == "/generate"
    assert raw["body"]["sampling_params"] == {"max_new_tokens": 9, "temperature": 0.5, "top_p": 0.9, "seed": 3}
    assert raw["body"]["rid"] in {line["request_id"] for line in lines_of(run)}
    assert summary_of(run)["scores"]["exact_match"]["mean"] == 1.0


def test_resume_asks_only_the_rest_at_any_concurrency(start_stub, mcq_file, tmp_path):
    stub, data, run, whole = start_stub(), mcq_file(30), tmp_path / "run", tmp_path / "whole"

    assert evaluate(stub.url, data, run, "--limit", "12", "--concurrency", "3") == 0
    assert evaluate(stub.url, data, run, "--concurrency", "16") == 0
    assert evaluate(stub.url, data, run, "--concurrency", "1") == 0

    assert len(stub.asked()) == 30
    assert max(Counter(entry["question"] for entry in stub.asked()).values()) == 1
    assert summary_of(run)["items"] == 30
    evaluate(stub.url, data, whole)
    assert (run / "export" / "results.tsv").read_bytes() == (whole / "export" / "results.tsv").read_bytes()


def test_many_at_once_by_default(start_stub, mcq_file, tmp_path):
    stub = start_stub(barrier=64)
    assert evaluate(stub.url, mcq_file(128), tmp_path / "run", "--timeout", "20", "--max-attempts", "1") == 0


def test_merge_recomputes_everything_from_the_log_alone(start_stub, mcq_file, tmp_path):
    stub, data, run = start_stub(), mcq_file(20), tmp_path / "run"
    evaluate(stub.url, data, run)
    derived = [run / "summary.json", run / "export" / "results.tsv", run / "scores" / "mcq.jsonl"]
    before = [path.read_bytes() for path in derived]
    for path in derived:
        path.unlink()
    data.unlink()
    stub.process.kill()

    assert main(["--merge", str(run)]) == 0

    assert [path.read_bytes() for path in derived] == before


def test_merge_of_an_unfinished_run_says_so(start_stub, mcq_file, tmp_path):
    stub, run = start_stub(), tmp_path / "run"
    evaluate(stub.url, mcq_file(8), run)
    (log,) = (run / "log").iterdir()
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:5]))

    assert main(["--merge", str(run)]) == 4

    summary = summary_of(run)
    assert (summary["status"], summary["done"], summary["remaining"]) == ("incomplete", 5, 3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("data", "data file"),
        ("parameter", "max_new_tokens: the run has 256, now it is 5"),
        ("template", "prompt template"),
        ("model", "iteration 7), now it is tiny (/models/tiny, iteration 8)"),
    ],
)
def test_refuses_to_mix(start_stub, mcq_file, tmp_path, capsys, change, reason):
    stub, data, run = start_stub(), mcq_file(4), tmp_path / "run"
    assert evaluate(stub.url, data, run) == 0
    kept = (run / "export" / "results.tsv").read_bytes()
    more: list[str] = []
    match change:
        case "data":
            data = mcq_file(5)
        case "parameter":
            more = ["--max-new-tokens", "5"]
        case "template":
            template = tmp_path / "prompt.jinja"
            template.write_text("{{ question }}?!")
            more = ["--prompt-template", str(template)]
        case "model":
            stub = start_stub(checkpoint={"path": "/models/tiny", "format": "torch_dist", "iteration": 8})

    assert evaluate(stub.url, data, run, *more) == 2
    assert reason in capsys.readouterr().err
    assert (run / "export" / "results.tsv").read_bytes() == kept

    assert evaluate(stub.url, data, run, *more, "--new-run") == 0
    assert (run / "superseded" / "1" / "export" / "results.tsv").read_bytes() == kept
    assert summary_of(run)["log"]["lines"] == summary_of(run)["items"]


def test_another_server_with_the_same_weights_resumes(start_stub, mcq_file, tmp_path):
    checkpoint = {"format": "torch_dist", "iteration": 7, "digest": "abc"}
    first = start_stub(checkpoint={**checkpoint, "path": "/a"})
    second = start_stub(checkpoint={**checkpoint, "path": "/elsewhere"})
    data, run = mcq_file(6), tmp_path / "run"

    assert evaluate(first.url, data, run, "--limit", "4") == 0
    assert evaluate(second.url, data, run) == 0

    assert len(second.asked()) == 2


def test_bad_rows_are_data_and_count_as_wrong(start_stub, write_jsonl, mcq_file, tmp_path, capsys):
    rows = [
        {"id": "good", "question": "1 + 1?", "choices": ["2", "3"], "answer": 0},
        "{not json",
        {"id": "answerless", "question": "1 + 1?", "choices": ["2", "3"], "answer": "five"},
    ]
    stub, run = start_stub(), tmp_path / "run"

    assert evaluate(stub.url, write_jsonl(rows), run) == 0

    assert len(stub.asked()) == 1
    by_id = {line["item_id"]: line for line in lines_of(run)}
    assert by_id["row2"]["status"] == by_id["answerless"]["status"] == "client_data"
    assert by_id["row2"]["row"] == 2
    summary = summary_of(run)
    assert (summary["done"], summary["failed"], summary["failed_by_class"]) == (1, 2, {"client_data": 2})
    assert summary["scores"]["mcq"]["n"] == 3
    assert "row 3: answer 'five' is neither" in capsys.readouterr().err


def test_duplicate_ids_keep_their_own_answers(start_stub, tmp_path, capsys):
    data, run = tmp_path / "data.tsv", tmp_path / "run"
    data.write_text("index\tquestion\n7\tECHO:one\n7\tECHO:two\n8\tECHO:three\n")
    stub = start_stub()

    assert evaluate(stub.url, data, run) == 0

    assert "'7'" in capsys.readouterr().err
    assert {line["item_id"] for line in lines_of(run)} == {"7#row1", "7#row2", "8"}
    table = [line.split("\t") for line in (run / "export" / "results.tsv").read_text().splitlines()[1:]]
    assert [(row[0], row[-1]) for row in table] == [("7", "one"), ("7", "two"), ("8", "three")]


def test_server_down_is_exit_2_with_advice(mcq_file, tmp_path, capsys):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"

        assert evaluate(url, mcq_file(2), tmp_path / "run") == 2

    assert "no server answers" in (error := capsys.readouterr().err)
    assert "megaserve serve" in error
    assert not (tmp_path / "run").exists()


def test_loading_server_is_waited_for_but_not_for_ever(start_stub, mcq_file, tmp_path, capsys):
    loading = start_stub(unready_seconds=0.8)
    assert evaluate(loading.url, mcq_file(2), tmp_path / "run") == 0

    stuck = start_stub(unready_seconds=3600)
    assert evaluate(stuck.url, mcq_file(2), tmp_path / "other", "--server-wait", "0.2") == 2
    assert "was not ready within 0.2 seconds" in capsys.readouterr().err


def test_images_go_to_a_vlm_and_not_to_a_gpt(start_stub, tmp_path, capsys):
    png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    data = tmp_path / "data.tsv"
    data.write_text(f"index\timage\tquestion\n0\t{png}\tECHO:seen\n1\t0\tECHO:same image\n")

    assert evaluate(start_stub().url, data, tmp_path / "gpt") == 2
    assert "2 rows" in capsys.readouterr().err

    vlm, run = start_stub(kind="vlm"), tmp_path / "vlm"
    assert evaluate(vlm.url, data, run) == 0
    for entry in vlm.asked():
        image, text = entry["body"]["messages"][-1]["content"]
        assert image == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}}
        assert text["text"].startswith("ECHO:")
    everything = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert png.encode() not in everything


def test_scorer_without_its_columns_is_refused_before_anything_is_asked(start_stub, write_jsonl, tmp_path, capsys):
    stub = start_stub()
    data = write_jsonl([{"id": 1, "prompt": "Once"}])

    assert evaluate(stub.url, data, tmp_path / "run", "--scorer", "mcq") == 2

    assert "--scorer mcq needs rows with options" in capsys.readouterr().err
    assert not stub.asked()


def test_output_that_is_something_else_is_refused(start_stub, mcq_file, tmp_path, capsys):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("Introduction")

    assert evaluate(start_stub().url, mcq_file(1), tmp_path / "thesis") == 2

    assert "'chapter1.tex'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "needs --server, --data, --output"),
        (
            ["--merge", "run", "--server", "http://localhost:1"],
            "--merge RUN takes only --scorer, --fail-on-error, --export, --report beside it, not --server",
        ),
        (["--server", "localhost:8000"], "is no URL"),
        (["--limit", "0"], "less than 1"),
        (["--temperature", "nan"], "not a finite number"),
        (["--top-p", "0"], "not in (0, 1]"),
        (["--scorer", "judge"], "invalid"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--offline", "--data", "d", "--output", "o"], "needs --load"),
        (["--offline", "--load", "c", "--server", "http://h", "--data", "d", "--output", "o"], "and no --server"),
        (["--load", "c", "--server", "http://h", "--data", "d", "--output", "o"], "--load needs --offline"),
        (["--pad-requests", "--server", "http://h", "--data", "d", "--output", "o"], "--pad-requests needs --offline"),
        (["--offline", "--load", "c", "--wait-for-ranks", "5", "--data", "d", "--output", "o"], "no --wait-for-ranks"),
        (["--prompt", "vqa", "--prompt-template", "t"], "not allowed with"),
        (["--next-turn", "f.py:f"], "--next-turn needs --request-type generate_until_multi_round"),
        (["--continuation", "text"], "--continuation needs --request-type multiple_choice"),
        ([*LOGLIKELIHOOD, "--continuation", "letter"], "--continuation needs --request-type multiple_choice"),
        ([*DIALOGUE, "--prompt", "auto"], "--prompt needs --request-type generate_until or loglikelihood or"),
        ([*DIALOGUE, "--prompt-template", "t"], "generate_until_multi_round takes none"),
        ([*LOGLIKELIHOOD, "--temperature", "0"], "--temperature needs --request-type generate_until or"),
        ([*LOGLIKELIHOOD, "--max-new-tokens", "9"], "--max-new-tokens needs"),
        ([*LOGLIKELIHOOD, "--stop", "x"], "--stop needs"),
        (["--request-type", "multiple_choice", "--seed", "1"], "--seed needs"),
        (["--request-type", "multiple_choice", "--top-p", "1"], "--top-p needs"),
    ],
)
def test_usage_errors(argv: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2
    assert reason in capsys.readouterr().err


def test_merge_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--merge", str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err


def test_torn_tail_is_asked_again_and_reported(
    start_stub: Callable[..., Any], mcq_file: Callable[[int], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub, data, run = start_stub(), mcq_file(6), tmp_path / "run"
    evaluate(stub.url, data, run)
    whole = (run / "export" / "results.tsv").read_bytes()
    (log,) = (run / "log").iterdir()
    log.write_bytes(log.read_bytes()[:-40])

    assert evaluate(stub.url, data, run) == 0

    assert "line 6: unfinished last line" in capsys.readouterr().err
    assert len(stub.asked()) == 7
    assert (run / "export" / "results.tsv").read_bytes() == whole
    assert summary_of(run)["log"] == {"lines": 6, "torn": 1, "corrupt": 0, "duplicates": 0}


def test_new_run_is_refused_to_one_of_several_ranks(start_stub, mcq_file, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert evaluate(start_stub().url, mcq_file(2), tmp_path / "run", "--new-run") == 2
    assert "--new-run would set the others' answers aside" in capsys.readouterr().err


def test_form_of_the_questions_belongs_to_the_run(start_stub, write_jsonl, tmp_path, capsys):
    data = write_jsonl([{"id": 1, "question": "Is it?", "answer": "yes"}])
    stub, run = start_stub(), tmp_path / "run"
    assert evaluate(stub.url, data, run, "--prompt", "yes_no", "--verbose") == 0
    assert stub.asked()[0]["question"] == "Is it?\nAnswer yes or no."
    assert "1: " in capsys.readouterr().err
    assert evaluate(stub.url, data, run) == 2
    assert "prompt template: the run has" in capsys.readouterr().err
