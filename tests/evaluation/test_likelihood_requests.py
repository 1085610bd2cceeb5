"""loglikelihood and multiple_choice from end to end, against a stub whose token log-probabilities are known.

The stub's tokens are words with the blanks before them; a token's log-probability is -1/8 for each of its characters,
and it is the likeliest one when its word begins with a vowel.
"""

from __future__ import annotations

import json

import pytest

from evaluation.cli import main

CHOICES = ["an owl", "eagle", "raven bird", "ibis"]


def evaluate(url, data, run, *more):
    return main(["--server", url, "--data", str(data), "--output", str(run), "--no-report", *more])


def lines_of(run):
    return [json.loads(line) for path in sorted((run / "log").iterdir()) for line in path.read_bytes().splitlines()]


def scores_of(run):
    return json.loads((run / "summary.json").read_text())["scores"]


def question(number=0, answer="D", choices=CHOICES):
    return {"id": f"q{number}", "question": f"Which bird is number {number}?", "choices": choices, "answer": answer}


def test_choices_by_text(start_stub, write_jsonl, tmp_path):
    stub, run = start_stub(), tmp_path / "run"
    data = write_jsonl([question(0, "D"), question(1, "C")])

    assert evaluate(stub.url, data, run, "--request-type", "multiple_choice") == 0

    first = next(line for line in lines_of(run) if line["item_id"] == "q0")
    assert (first["status"], first["answer"], first["text"], first["attempt"]) == ("ok", "D", None, 5)
    by_label = {one["label"]: one for one in first["likelihoods"]}
    assert {label: one["logprob"] for label, one in by_label.items()} == {
        "A": -7 / 8, "B": -6 / 8, "C": -11 / 8, "D": -5 / 8
    }  # fmt: skip
    assert {label: one["num_tokens"] for label, one in by_label.items()} == {"A": 2, "B": 1, "C": 2, "D": 1}
    assert {label: one["is_greedy"] for label, one in by_label.items()} == {"A": True, "B": True, "C": False, "D": True}
    assert not any(one["straddles"] for one in first["likelihoods"])
    scores = scores_of(run)
    assert scores["likelihood"]["mean"] == 0.5
    # Per character: -1/8 times (characters + 1) / characters, least bad for the longest choice.
    assert scores["likelihood_norm"]["mean"] == 0.5
    scored = [json.loads(line) for line in (run / "scores" / "likelihood_norm.jsonl").read_text().splitlines()]
    assert {(row["prediction"], row["rule"]) for row in scored} == {("C", "largest_logprob_per_character")}


def test_context_goes_first_and_is_shared(start_stub, write_jsonl, tmp_path):
    stub = start_stub()
    evaluate(stub.url, write_jsonl([question()]), tmp_path / "run", "--request-type", "multiple_choice")

    preflight, context, *choices = (entry["body"] for entry in stub.asked())
    assert preflight["return_logprob"] is True
    assert context["text"] == "Question: Which bird is number 0?\nAnswer:"
    assert "return_logprob" not in context, "without log-probabilities the whole context may come from the cache"
    assert sorted(body["text"] for body in choices) == sorted(f"{context['text']} {choice}" for choice in CHOICES)
    tokens_of_context = 10  # Question : Which bird is number 0 ? Answer :
    assert {body["logprob_start_len"] for body in choices} == {tokens_of_context - 1}
    assert {body["sampling_params"]["max_new_tokens"] for body in (context, *choices)} == {1}


def test_choices_by_letter(start_stub, write_jsonl, tmp_path):
    stub, run = start_stub(), tmp_path / "run"
    flags = ("--request-type", "multiple_choice", "--continuation", "letter")

    assert evaluate(stub.url, write_jsonl([question()]), run, *flags) == 0

    context = stub.asked()[1]["body"]["text"]
    assert context.endswith("number 0?\nA. an owl\nB. eagle\nC. raven bird\nD. ibis\nAnswer:")
    assert {entry["body"]["text"] for entry in stub.asked()[2:]} == {f"{context} {letter}" for letter in "ABCD"}
    (line,) = lines_of(run)
    assert line["answer"] == "A", "of equal ones the first"


def test_loglikelihood_of_an_answer_as_it_stands(start_stub, write_jsonl, tmp_path):
    rows = [
        {"id": "greedy", "prompt": "Once upon", "answer": " a isle"},
        {"id": "other", "prompt": "Once upon ", "answer": "time"},
    ]
    stub, run = start_stub(), tmp_path / "run"

    assert evaluate(stub.url, write_jsonl(rows), run, "--request-type", "loglikelihood") == 0

    by_id = {line["item_id"]: line["likelihoods"][0] for line in lines_of(run)}
    assert (by_id["greedy"]["logprob"], by_id["greedy"]["is_greedy"]) == (-7 / 8, True)
    # The blank at the end of the context belongs to the word after it.
    assert (by_id["other"]["logprob"], by_id["other"]["is_greedy"]) == (-5 / 8, False)
    score = scores_of(run)["greedy"]
    assert score["mean"] == 0.5
    assert score["perplexity"] == pytest.approx(2.718281828 ** (12 / 8 / 3))


def test_token_across_the_border_is_scored_whole_and_said_so(start_stub, write_jsonl, tmp_path):
    """ "win" and "dow" make one token, which no prefix of the context's tokens holds."""
    rows = [{"id": 1, "prompt": "open a win", "answer": "dow now"}]
    stub, run = start_stub(), tmp_path / "run"

    assert evaluate(stub.url, write_jsonl(rows), run, "--request-type", "loglikelihood") == 0

    (line,) = lines_of(run)
    (likelihood,) = line["likelihoods"]
    assert likelihood["straddles"] is True
    assert (likelihood["logprob"], likelihood["num_tokens"]) == (-(len(" window") + len(" now")) / 8, 2)


def test_continuation_that_is_swallowed_by_the_context(start_stub, write_jsonl, tmp_path):
    """The whole has no more tokens than the context; asking from the context's end on would be refused."""
    rows = [{"id": 1, "prompt": "win", "answer": "dow"}, {"id": 2, "prompt": "a win", "answer": "dow"}]
    stub, run = start_stub(), tmp_path / "run"

    assert evaluate(stub.url, write_jsonl(rows), run, "--request-type", "loglikelihood") == 0

    first, second = sorted(lines_of(run), key=lambda line: line["item_id"])
    assert (first["status"], first["answer"]) == ("client_data", None)
    assert second["likelihoods"][0]["logprob"] == -len(" window") / 8


def test_faults_leave_no_trace(start_stub, write_jsonl, tmp_path):
    data = write_jsonl([question(n, "ABCD"[n % 4]) for n in range(12)])
    flags = ("--request-type", "multiple_choice", "--timeout", "0.7")
    faults = ["429", "500", "half_body", "reset", "not_json", "abort"]
    stub = start_stub()
    faulty = start_stub(faults=faults, seed=8, faultless=["One two"])

    assert evaluate(stub.url, data, tmp_path / "calm", *flags) == 0
    assert evaluate(faulty.url, data, tmp_path / "faulty", *flags) == 0

    assert any(line["failed_attempts"] for line in lines_of(tmp_path / "faulty"))
    for name in ("export/results.tsv", "scores/likelihood.jsonl", "scores/likelihood_norm.jsonl"):
        assert (tmp_path / "faulty" / name).read_bytes() == (tmp_path / "calm" / name).read_bytes()


def test_server_that_ignores_the_request_is_found_out_first(start_stub, write_jsonl, tmp_path, capsys):
    stub = start_stub(without_logprobs=True)

    assert evaluate(stub.url, write_jsonl([question()]), tmp_path / "run", "--request-type", "multiple_choice") == 2

    assert "gives no log-probabilities of a prompt" in capsys.readouterr().err
    assert len(stub.asked()) == 1


@pytest.mark.parametrize(
    ("row", "flags", "reason"),
    [
        ({"question": "q", "answer": "a"}, ("multiple_choice",), "needs options"),
        ({"question": "q"}, ("loglikelihood",), "needs an answer"),
        ({"prompt": "  ", "answer": "a"}, ("loglikelihood",), "context is empty"),
        ({"prompt": "p", "answer": " "}, ("loglikelihood",), "continuation is empty"),
        ({"messages": [{"role": "user", "content": "u"}], "answer": "a"}, ("loglikelihood",), "not a chat"),
        ({"messages": [{"role": "user", "content": "u"}], "choices": CHOICES}, ("multiple_choice",), "not a chat"),
        ({"turns": ["t", "u"], "choices": CHOICES}, ("multiple_choice",), "not a chat"),
    ],
)
def test_rows_that_cannot_be_measured(start_stub, write_jsonl, tmp_path, row, flags, reason):
    data, run = write_jsonl([row, question()]), tmp_path / "run"
    assert evaluate(start_stub().url, data, run, "--request-type", *flags) == 0
    bad = next(line for line in lines_of(run) if line["row"] == 1)
    assert (bad["status"], bad["attempt"]) == ("client_data", 0)
    assert reason in bad["error"]["message"]


def test_request_types_do_not_mix(start_stub, write_jsonl, tmp_path, capsys):
    stub, data, run = start_stub(), write_jsonl([question()]), tmp_path / "run"
    assert evaluate(stub.url, data, run) == 0
    assert evaluate(stub.url, data, run, "--request-type", "multiple_choice") == 2
    assert "request_type: the run has None, now it is multiple_choice" in capsys.readouterr().err
    assert evaluate(stub.url, data, tmp_path / "x", "--request-type", "multiple_choice", "--scorer", "mcq") == 2
    assert "--scorer mcq judges answers of --request-type generate_until" in capsys.readouterr().err
