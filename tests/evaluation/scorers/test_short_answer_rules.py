"""VQA, ANLS, relaxed accuracy, OCR and yes/no: cases worked out by hand from the published rules."""

from __future__ import annotations

import pytest

from evaluation.scorers.anls import edit_distance, judge_anls
from evaluation.scorers.circular import circular_group
from evaluation.scorers.contains import FORMULAS, judge_contains
from evaluation.scorers.likelihood import judge_greedy, judge_likeliest, perplexity_of
from evaluation.scorers.relaxed_accuracy import judge_relaxed
from evaluation.scorers.vqa import judge_vqa, normalize
from evaluation.scorers.yes_no import YesNoRow, acc_plus_of, f1_of, judge_yes_no


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Red Car.", "red car"),
        ("Two  dogs", "2 dogs"),
        ("none", "0"),
        ("1,000 people!", "1000 people"),
        ("3.5", "3.5"),
        ("t-shirt", "t shirt"),
        ("yes, it is", "yes it is"),
        ("don't", "dont"),
        ("A", ""),
    ],
)
def test_vqa_normalisation(text, normal):
    assert normalize(text) == normal


@pytest.mark.parametrize(
    ("references", "score"),
    [
        # How many of ten people say the same: 0.3 for each of the first three (Antol et al. 2015).
        (["yes"] * 0 + ["no"] * 10, 0.0),
        (["yes"] * 1 + ["no"] * 9, 0.3),
        (["yes"] * 2 + ["no"] * 8, 0.6),
        (["yes"] * 3 + ["no"] * 7, 0.9),
        (["yes"] * 4 + ["no"] * 6, 1.0),
        (["Yes."], 1.0),
        (["no", "yes"], 1.0),
        (["no"], 0.0),
        (["yes", "yes", "yes", "no"], (3 * 2 / 3 + 1) / 4),
    ],
)
def test_vqa_accuracy(references, score):
    assert judge_vqa("yes", references).score == pytest.approx(score)


@pytest.mark.parametrize(("left", "right", "distance"), [("kitten", "sitting", 3), ("", "abc", 3), ("flaw", "lawn", 2)])
def test_edit_distance(left, right, distance):
    assert edit_distance(left, right) == edit_distance(right, left) == distance


@pytest.mark.parametrize(
    ("answer", "references", "score"),
    [
        ("Kitten", ["sitting"], 1 - 3 / 7),
        ("kitten", ["xxxxxxx", "kittens"], 1 - 1 / 7),
        ("ab", ["abcd"], 0.5),
        ("a", ["abcd"], 0.0),
        (" New   York ", ["new york"], 1.0),
        ("", [""], 1.0),
        ("x" * 100_000, ["x"], 0.0),
    ],
)
def test_anls(answer, references, score):
    assert judge_anls(answer, references).score == pytest.approx(score)


@pytest.mark.parametrize(
    ("answer", "gold", "hit"),
    [
        ("100", "100", True),
        ("95", "100", True),
        ("105", "100", True),
        ("94.9", "100", False),
        ("105.1", "100", False),
        ("Yes", "yes", True),
        ("5%", "0.05", True),
        ("5%", "5", False),
        ("0.0", "0", True),
        ("0.001", "0", False),
        ("-10", "-10.4", True),
        ("nan", "1", False),
        ("inf", "inf", True),
        ("2,000", "2000", False),
        ("", "1", False),
    ],
)
def test_relaxed_accuracy(answer, gold, hit):
    assert judge_relaxed(answer, [gold]).score == float(hit)
    assert judge_relaxed(answer, ["zzz", gold]).score == float(hit)


@pytest.mark.parametrize(
    ("answer", "references", "category", "hit"),
    [
        ("It says STOP here", ["stop"], "", True),
        ("It says\nSTOP", ["says stop"], "", True),
        ("It says go", ["stop", ""], "", False),
        (r"\frac { a } { b }", [r"\frac{a}{b}"], FORMULAS, True),
        (r"\FRAC{a}{b}", [r"\frac{a}{b}"], FORMULAS, False),
    ],
)
def test_contains(answer, references, category, hit):
    assert judge_contains(answer, references, category).score == float(hit)


@pytest.mark.parametrize(
    ("answer", "prediction"),
    [("Yes.", "yes"), ("No, it isn't", "no"), ("yes and no", None), ("maybe", None), ("nothing", None), ("", None)],
)
def test_yes_or_no(answer, prediction):
    verdict = judge_yes_no(answer, ["Yes"])
    assert (verdict.score, verdict.prediction) == (float(prediction == "yes"), prediction)


def test_f1_and_acc_plus():
    rows = [
        YesNoRow("yes", "yes", "a"),
        YesNoRow("no", "no", "a"),
        YesNoRow("yes", None, "b"),
        YesNoRow("no", "yes", "b"),
        YesNoRow("yes", "yes", "c"),
        YesNoRow("no", "no", "c"),
    ]
    figures = f1_of(rows)
    assert (figures["precision"], figures["recall"], figures["f1"]) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert acc_plus_of(rows) == pytest.approx(2 / 3)
    assert f1_of([YesNoRow("no", "no", "")])["f1"] == 0.0
    assert acc_plus_of([YesNoRow("no", "no", "")]) is None


@pytest.mark.parametrize(
    ("columns", "group"),
    [
        ({"index": "3000007"}, "7"),
        ({"index": "7"}, "7"),
        ({"index": "9", "g_index": "4"}, "4"),
        ({"index": "q7"}, "q7"),
    ],
)
def test_rotations_share_a_group(columns, group):
    assert circular_group(columns) == group


def test_likeliest_choice_by_sum_and_by_character():
    likelihoods = [
        {"label": "A", "logprob": -2.0, "num_tokens": 1, "num_characters": 2},
        {"label": "B", "logprob": -3.0, "num_tokens": 2, "num_characters": 6},
    ]
    assert judge_likeliest(likelihoods, "A", normalized=False)[:2] == (1.0, "A")
    assert judge_likeliest(likelihoods, "A", normalized=True)[:2] == (0.0, "B")
    assert judge_greedy([{"logprob": -1.0, "is_greedy": True}]) == (1.0, "-1.000000", "greedy")
    assert perplexity_of(likelihoods) == pytest.approx(2.718281828459045 ** (5 / 3))
    assert perplexity_of([]) is None
