"""Answers of ranks whose run directory is on another machine reach rank 0's log, once."""

from __future__ import annotations

import json

from evaluation.cli import main
from evaluation.offline.session import keep_what_is_missing
from evaluation.run_directory.layout import RunLayout
from evaluation.run_directory.log_reader import read_logs
from evaluation.run_directory.open_run import open_existing


def test_what_is_not_there_is_kept_and_what_is_there_is_not_doubled(start_stub, mcq_file, tmp_path):
    data, here, elsewhere = str(mcq_file(10)), tmp_path / "here", tmp_path / "elsewhere"
    stub = start_stub()
    for run, limit in ((here, "4"), (elsewhere, "10")):
        main(["--server", stub.url, "--data", data, "--limit", limit, "--output", str(run), "--no-report"])
    main(["--server", stub.url, "--data", data, "--output", str(here), "--ids", "q9", "--no-report"])
    logs = [path.read_text() for run in (here, elsewhere) for path in sorted((run / "log").iterdir())]
    known = {record.key for record in read_logs(here / "log").records}
    missing = [line for line in logs[-1].splitlines(keepends=True) if json.loads(line)["key"] not in known]

    for _ in range(2):
        keep_what_is_missing(open_existing(RunLayout(here)), [*logs[:-1], "".join(missing)])

    records = read_logs(here / "log").records
    assert sorted(record.item_id for record in records) == sorted(f"q{number}" for number in range(10))
    assert main(["--merge", str(here), "--no-report"]) == 0
