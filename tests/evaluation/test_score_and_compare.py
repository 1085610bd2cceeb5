"""`megaserve score`, `megaserve compare`, the exports and the report, from runs that are over."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import openpyxl
import pytest

from evaluation import cli_compare, cli_score
from evaluation.cli import main

ROWS = [
    {
        "id": n,
        "question": f"<b>&amp; ECHO:{'yes' if n % 3 else 'no'}",
        "answer": "yes" if n % 2 else "no",
        "category": c,
    }
    for n, c in enumerate("aabbb<i>" * 2)
]


@pytest.fixture
def finished_run(start_stub, write_jsonl, tmp_path):
    run, data = tmp_path / "run", write_jsonl(ROWS)
    assert (
        main(["--server", start_stub().url, "--data", str(data), "--output", str(run), "--scorer", "exact_match"]) == 0
    )
    return run


def summary_of(run):
    return json.loads((run / "summary.json").read_text())


def test_rescoring_adds_scores_and_asks_nobody(finished_run, capsys):
    log = {path: path.read_bytes() for path in (finished_run / "log").iterdir()}
    assert list(summary_of(finished_run)["scores"]) == ["exact_match"]

    assert cli_score.main([str(finished_run), "--scorer", "yes_no", "--scorer", "anls"]) == 0

    scores = summary_of(finished_run)["scores"]
    assert set(scores) == {"exact_match", "yes_no", "anls"}
    assert scores["yes_no"]["mean"] == scores["exact_match"]["mean"]
    assert {"f1", "precision", "recall"} <= scores["yes_no"].keys()
    assert {path: path.read_bytes() for path in (finished_run / "log").iterdir()} == log
    assert "Score      yes_no" in capsys.readouterr().out


def test_scores_by_category(finished_run):
    categories = summary_of(finished_run)["categories"]["exact_match"]["category"]
    assert {name: one["n"] for name, one in categories.items()} == {"a": 4, "b": 6, "<": 2, "i": 2, ">": 2}
    by_hand = [("yes" if n % 3 else "no") == ("yes" if n % 2 else "no") for n in (0, 1, 8, 9)]
    assert categories["a"]["mean"] == sum(by_hand) / 4


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["absent"], "not a run directory"),
        (["{run}", "--scorer", "mcq"], "needs rows with options"),
        (["{run}", "--scorer", "likelihood"], "judges answers of --request-type multiple_choice"),
    ],
)
def test_score_refuses(finished_run, capsys, argv, reason):
    assert cli_score.main([part.format(run=finished_run) for part in argv]) == 2
    assert reason in capsys.readouterr().err


def test_exports_in_every_format(finished_run):
    flags = [flag for name in ("xlsx", "tsv", "json", "csv", "lmms-eval") for flag in ("--export", name)]
    assert cli_score.main([str(finished_run), *flags]) == 0

    folder = finished_run / "export"
    predictions = ["no" if n % 3 == 0 else "yes" for n in range(len(ROWS))]
    sheet = openpyxl.load_workbook(folder / "tiny_data.xlsx").active
    header, *rows = sheet.iter_rows(values_only=True)
    assert header == ("index", "question", "answer", "category", "prediction")
    assert [(row[0], row[4]) for row in rows] == list(enumerate(predictions))
    assert (folder / "tiny_data.tsv").read_bytes() == (folder / "results.tsv").read_bytes()
    assert [one["prediction"] for one in json.loads((folder / "tiny_data.json").read_text())] == predictions
    with (folder / "tiny_data.csv").open(newline="") as file:
        assert [one["prediction"] for one in csv.DictReader(file)] == predictions


def test_lmms_eval_files_have_its_names_and_keys(finished_run):
    assert cli_score.main([str(finished_run), "--export", "lmms-eval"]) == 0

    results, samples = sorted((finished_run / "export" / "lmms_eval" / "tiny").iterdir())
    assert re.fullmatch(r"\d{8}_\d{6}_results\.json", results.name)
    assert re.fullmatch(r"\d{8}_\d{6}_samples_data\.jsonl", samples.name)
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [line["doc_id"] for line in lines] == list(range(len(ROWS)))
    first = lines[0]
    assert {"doc_id", "input", "target", "filtered_resps", "token_counts", "doc_hash", "exact_match"} <= first.keys()
    assert "resps" not in first, "left out where it equals filtered_resps"
    assert (first["target"], first["filtered_resps"], first["exact_match"]) == ("no", ["no"], 1.0)
    # lmms-eval's log browser finds the samples by the results file's prefix and by each task it names.
    tasks = list(json.loads(results.read_text())["results"])
    found = [results.with_name(f"{results.stem.removesuffix('_results')}_samples_{task}.jsonl") for task in tasks]
    assert found == [samples]
    figures = json.loads(results.read_text())["results"]["data"]
    assert figures["exact_match,none"] == summary_of(finished_run)["scores"]["exact_match"]["mean"]


def test_cell_that_no_workbook_holds_goes_to_a_table(start_stub, write_jsonl, tmp_path, capsys):
    data, run = write_jsonl([{"id": 1, "question": "ECHO:" + "x" * 40_000}]), tmp_path / "run"
    assert main(["--server", start_stub().url, "--data", str(data), "--output", str(run), "--export", "xlsx"]) == 0
    assert "tiny_data.tsv instead" in capsys.readouterr().err
    assert not list((run / "export").glob("*.xlsx"))
    assert "x" * 40_000 in (run / "export" / "tiny_data.tsv").read_text()


class Page(HTMLParser):
    """Cells of the table of rows, and every address that the page would fetch."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.addresses, self._in_cell = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.addresses += [named[name] for name in ("src", "href") if named.get(name)]
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")
        self._in_cell = tag == "td" or (self._in_cell and tag == "img")

    def handle_data(self, data):
        if self._in_cell:
            self.rows[-1][-1] += data


def test_report_is_one_file_that_shows_every_row_as_it_is(finished_run):
    text = (finished_run / "report.html").read_text()
    page = Page(text)
    table = page.rows[-len(ROWS) :]
    assert [row[0] for row in table] == [str(row["id"]) for row in ROWS]
    assert [row[2] for row in table] == [row["question"] for row in ROWS], "what looks like markup is text"
    assert [row[3] for row in table] == [row["answer"] for row in ROWS]
    assert "exact_match: 1 (equal)" in table[0][7]
    assert not [address for address in page.addresses if not address.startswith(("data:", "#"))]
    drawn = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    assert len(drawn) == 4, "scores, categories, latency, answer length"
    assert cli_score.main([str(finished_run), "--scorer", "exact_match"]) == 0
    assert (finished_run / "report.html").read_text() == text, "equal data give an equal file"


def test_report_shows_thumbnails(start_stub, tmp_path):
    run = tmp_path / "run"
    command = ["--server", start_stub(kind="vlm").url, "--data", "easy-vqa:test", "--output", str(run)]
    assert main([*command, "--limit", "24"]) == 0
    page = Page((run / "report.html").read_text())
    images = [address for address in page.addresses if address.startswith("data:image/webp;base64,")]
    assert len(images) == 24
    assert len(set(images)) == len(list((run / "thumbnails").iterdir())) == 2 + (len(set(images)) > 2)


def test_report_of_an_unfinished_run_is_not_left_behind(finished_run):
    (log,) = (finished_run / "log").iterdir()
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:3]))
    assert cli_score.main([str(finished_run)]) == 4
    assert not (finished_run / "report.html").exists()


@pytest.fixture
def two_runs(start_stub, write_jsonl, tmp_path):
    """Of ten rows, A has eight right; B has the first seven of these, and the last row."""
    runs = []
    for name, wrong in (("a", {8, 9}), ("b", {7, 8})):
        rows = [
            {"id": n, "question": f"ECHO:{'wrong' if n in wrong else 'right'}", "answer": "right"} for n in range(10)
        ]
        runs.append(tmp_path / name)
        data = write_jsonl(rows, f"{name}.jsonl")
        assert main(["--server", start_stub().url, "--data", str(data), "--output", str(runs[-1])]) == 0
    return runs


def test_compare(two_runs, capsys):
    capsys.readouterr()
    assert cli_compare.main([*map(str, two_runs), "--json"]) == 0

    captured = capsys.readouterr()
    (compared,) = json.loads(captured.out)
    assert (compared["scorer"], compared["n"]) == ("exact_match", 10)
    assert (compared["mean_a"], compared["mean_b"], compared["difference"]) == (0.8, 0.8, 0.0)
    # Differences: eight times 0, +1, -1: the standard deviation is the root of 2/9.
    assert compared["stderr"] == pytest.approx((2 / 9 / 10) ** 0.5)
    assert compared["ci95"] == pytest.approx([-1.96 * compared["stderr"], 1.96 * compared["stderr"]], rel=1e-3)
    assert [(flip["item_id"], flip["score_a"], flip["score_b"]) for flip in compared["flips"]] == [
        ("7", 1.0, 0.0), ("9", 0.0, 1.0)
    ]  # fmt: skip
    assert "data file" in captured.err, "the two were asked other questions, and one is told"


def test_compare_in_words(two_runs, capsys):
    assert cli_compare.main([*map(str, two_runs), "--flips", "1"]) == 0
    out = capsys.readouterr().out
    assert "B - A = +0.0000" in out
    assert "2 rows flipped: 1 better in B, 1 worse" in out
    assert "7: 1 -> 0, 'right' -> 'wrong', gold 'right'" in out
    assert "9: 0 -> 1" not in out


def test_compare_generated_answers_with_likelihoods(start_stub, write_jsonl, tmp_path, capsys):
    """The stub likes the shortest option best, and generates what it is told."""
    rows = [{"id": n, "question": "Which?", "choices": ["owl", "raven"], "answer": "AB"[n]} for n in range(2)]
    template = tmp_path / "template"
    template.write_text("ECHO:B")
    command = ["--server", start_stub().url, "--data", str(write_jsonl(rows)), "--no-report"]
    generated, likelihoods = tmp_path / "generated", tmp_path / "likelihoods"
    assert main([*command, "--output", str(generated), "--prompt-template", str(template)]) == 0
    assert main([*command, "--output", str(likelihoods), "--request-type", "multiple_choice"]) == 0
    capsys.readouterr()

    for runs, name in (((generated, likelihoods), "mcq, likelihood"), ((likelihoods, generated), "likelihood, mcq")):
        assert cli_compare.main([*map(str, runs), "--json"]) == 0
        (compared,) = json.loads(capsys.readouterr().out)
        assert (compared["scorer"], compared["mean_a"], compared["mean_b"]) == (name, 0.5, 0.5)
        assert len(compared["flips"]) == 2
    assert cli_compare.main([str(generated), str(likelihoods), "--scorer", "mcq"]) == 2
    assert "judges answers of --request-type" in capsys.readouterr().err


def test_compare_refuses(two_runs, tmp_path, capsys):
    assert cli_compare.main([str(two_runs[0]), str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err
