"""What the shell is told: the key that a server wants, failures beyond a limit, signals."""

from __future__ import annotations

import base64
import json
import signal

import pytest

from evaluation.cli import main
from evaluation.datasets.image_store import ImageStore
from evaluation.errors import RunDirectoryError
from evaluation.report.thumbnails import write_thumbnails

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def evaluate(url, data, run, *more):
    return main(["--server", url, "--data", str(data), "--output", str(run), "--no-report", *more])


def test_server_that_wants_a_key(start_stub, mcq_file, tmp_path, capsys, monkeypatch):
    stub, data = start_stub(api_key="sesame"), mcq_file(3)

    assert evaluate(stub.url, data, tmp_path / "run") == 5
    assert "see --api-key" in capsys.readouterr().err
    assert evaluate(stub.url, data, tmp_path / "run", "--api-key", "wrong") == 5
    assert not (tmp_path / "run").exists()
    assert not stub.asked()

    assert evaluate(stub.url, data, tmp_path / "run", "--api-key", "sesame") == 0
    monkeypatch.setenv("MEGASERVE_API_KEY", "sesame")
    assert evaluate(stub.url, data, tmp_path / "other") == 0
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("*/**/*") if path.is_file() and "stub" not in str(path))
    assert b"sesame" not in kept, "a key is kept nowhere"


def test_key_that_no_header_can_hold_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--api-key", "a\nb"])
    assert exit_.value.code == 2


def test_fail_on_error(start_stub, write_jsonl, tmp_path):
    """Two of ten rows are bad."""
    good = [{"id": n, "question": f"ECHO:{n}", "answer": str(n)} for n in range(8)]
    data, run = write_jsonl([*good, "{", "["]), tmp_path / "run"

    assert evaluate(start_stub().url, data, run, "--fail-on-error", "1") == 3
    limits = {"0": 3, "1": 3, "2": 0, "3": 0, "19%": 3, "20%": 0, "0%": 3, "100%": 0}
    assert {limit: main(["--merge", str(run), "--fail-on-error", limit]) for limit in limits} == limits


@pytest.mark.parametrize("limit", ["-1", "101%", "x", "nan%"])
def test_limits_that_are_none(limit):
    with pytest.raises(SystemExit) as exit_:
        main(["--fail-on-error", limit])
    assert exit_.value.code == 2


def test_terminated_is_incomplete_and_interrupted_is_130(start_stub, mcq_file, tmp_path, start_client):
    stub, data = start_stub(latency=0.05), mcq_file(80)
    for number, status in ((signal.SIGTERM, 4), (signal.SIGINT, 130)):
        run = tmp_path / number.name
        client = start_client(stub.url, data, run, "--concurrency", "2")
        client.wait_for_lines(5)
        client.process.send_signal(number)
        assert client.process.wait(60) == status
        assert json.loads((run / "summary.json").read_text())["status"] == "incomplete"


def test_what_ended_the_asking_is_told_even_if_the_results_cannot_be_written(
    start_stub, write_jsonl, tmp_path, capsys, full_disk
):
    """A disk that is full for the log and for the results, but not yet for the rows and the manifest."""
    data = write_jsonl([{"id": number, "question": "ECHO:" + "x" * 3000} for number in range(10)])
    stub, whole, run = start_stub(), tmp_path / "whole", tmp_path / "run"
    assert evaluate(stub.url, data, whole) == 0
    sizes = {name: max(path.stat().st_size for path in (whole / name).iterdir()) for name in ("dataset", "log")}
    limit = sum(sizes.values()) // 2
    assert sizes["dataset"] < limit < (whole / "export/results.tsv").stat().st_size
    capsys.readouterr()

    with full_disk(limit):
        assert evaluate(stub.url, data, run, "--concurrency", "1") == 4

    told = capsys.readouterr().err
    assert "Warning: cannot write the results" in told
    assert "log" in told.splitlines()[-1] and "cannot write the results" not in told.splitlines()[-1]
    assert evaluate(stub.url, data, run) == 0


def test_thumbnails_that_cannot_be_written(tmp_path):
    (tmp_path / "p.png").write_bytes(base64.b64decode(PNG))
    (tmp_path / "thumbnails").touch()
    with pytest.raises(RunDirectoryError, match="cannot write"):
        write_thumbnails(tmp_path / "thumbnails", [ImageStore().from_file(tmp_path / "p.png")])


def test_merge_proves_coverage_also_with_failures_that_could_pass(start_stub, mcq_file, tmp_path):
    broken, run = start_stub(always="500"), tmp_path / "run"
    assert evaluate(broken.url, mcq_file(3), run, "--max-attempts", "1") == 4

    assert main(["--merge", str(run)]) == 0

    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["failed"], summary["remaining"]) == ("incomplete", 3, 0)
    assert "server_5xx" in (run / "report.html").read_text()
    assert main(["--merge", str(run), "--fail-on-error", "2"]) == 3
    (log,) = (run / "log").iterdir()
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))
    assert main(["--merge", str(run)]) == 4
    assert not (run / "report.html").exists()
