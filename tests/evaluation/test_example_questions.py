"""The question set that ships with the project is sound."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from evaluation.datasets import load_dataset

QUESTIONS = Path(__file__).parents[2] / "examples" / "general_knowledge_mcq.jsonl"


def test_two_hundred_sound_questions():
    dataset = load_dataset(QUESTIONS)
    assert not dataset.warnings
    assert len(dataset.items) == 200
    assert len({item.question for item in dataset.items}) == 200
    assert len({item.item_id for item in dataset.items}) == 200
    for item in dataset.items:
        assert list(item.options) == ["A", "B", "C", "D"], item.item_id
        texts = {" ".join(text.casefold().split()) for text in item.options.values()}
        assert len(texts) == 4 and "" not in texts, item.item_id
        assert item.references[0] == item.columns["answer"], item.item_id


def test_letters_are_balanced_and_follow_no_simple_pattern():
    letters = "".join(item.references[0] for item in load_dataset(QUESTIONS).items)
    assert Counter(letters) == dict.fromkeys("ABCD", 50)
    for period in range(1, 9):
        repeats = sum(a == b for a, b in zip(letters, letters[period:], strict=False))
        assert repeats < len(letters) / 2, period
