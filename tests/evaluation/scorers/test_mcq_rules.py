"""Option extraction: cases worked out by hand from the rules, none from the code."""

from __future__ import annotations

import pytest

from evaluation.scorers.mcq import extract_option, judge_mcq

OPTIONS = {"A": "Paris", "B": "London", "C": "Rome", "D": "New York"}


@pytest.mark.parametrize(
    ("answer", "letter", "rule"),
    [
        ("B", "B", "letter"),
        ("(B)", "B", "letter"),
        ("B.", "B", "letter"),
        ("**B**: London", "B", "letter"),
        ("B. London", "B", "letter"),
        ("I would choose option C", "C", "letter"),
        ("Answer: D", "D", "letter"),
        ("B B", "B", "letter"),
        ("the words before do not matter as long as the letter comes late C", "C", "letter"),
        # The letter stands six words before the end: too early for the first rule, right for the second.
        ("The correct answer is B because that is where the river runs", "B", "pattern"),
        ("Not A, not C. The answer is (B).", "B", "pattern"),
        ("answer is: **D** and never A", "D", "pattern"),
        ("The answer is a town called Rome", "C", "text"),
        ("It is rome.", "C", "text"),
        ("london", "B", "text"),
        ("A or B", None, "miss"),
        ("The answer is A. No, the answer is B.", None, "miss"),
        ("Paris or London", None, "miss"),
        ("Berlin", None, "miss"),
        ("the answer is b", None, "miss"),
        ("E", None, "miss"),
        ("", None, "miss"),
        ("b", None, "miss"),
        ("The answer is Athens", None, "miss"),
        ("The city that the question speaks about is of course the old and famous Rome", None, "miss"),
    ],
)
def test_extraction(answer, letter, rule):
    assert extract_option(answer, OPTIONS) == (letter, rule)


def test_text_limit_is_twice_the_options_together():
    total = sum(map(len, OPTIONS.values()))
    assert extract_option("rome".ljust(2 * total, "."), OPTIONS).letter == "C"
    assert extract_option("rome".ljust(2 * total + 1, "."), OPTIONS).letter is None


def test_verdict_names_its_rule():
    assert judge_mcq("B", OPTIONS, "B") == (1.0, "B", "letter")
    assert judge_mcq("rome", OPTIONS, "B") == (0.0, "C", "text")
    assert judge_mcq("?", OPTIONS, "B") == (0.0, None, "miss")


def test_a_miss_is_never_a_guess():
    assert {extract_option("no idea at all", OPTIONS).letter for _ in range(50)} == {None}
