"""What the normalisation makes equal, and what it keeps apart."""

from __future__ import annotations

import pytest

from evaluation.scorers.exact_match import judge_exact_match


@pytest.mark.parametrize(
    ("answer", "references", "hit"),
    [
        ("Paris", ["paris"], True),
        (" Paris.\n", ["PARIS"], True),
        ("New\u00a0 York", ["new york"], True),
        ("STRASSE", ["straße"], True),
        ("\uff14\uff12", ["42"], True),
        ("one", ["two", "one"], True),
        ("Paris, France", ["Paris"], False),
        ("007", ["7"], False),
        ("1..", ["1"], False),
        ("résumé", ["resume"], False),
        ("x", [], False),
    ],
)
def test_exact_match(answer, references, hit):
    verdict = judge_exact_match(answer, references)
    assert (verdict.score, verdict.rule) == (float(hit), "equal" if hit else "different")
