"""The usual forms of a question, by --prompt."""

from __future__ import annotations

import pytest

from evaluation.datasets import Item
from evaluation.prompts import PromptFamily, family_text, render

OPTIONS = Item(item_id="1", row=1, columns={}, question="Which?", hint="Look.", options={"A": "x", "B": "y"})
OPEN = Item(item_id="2", row=2, columns={}, question="Is it?", raw_prompt="Is it?")
LETTERED = "Hint: Look.\nQuestion: Which?\nOptions:\nA. x\nB. y\nReply with the letter of the correct option only."


@pytest.mark.parametrize(
    ("family", "item", "text"),
    [
        (PromptFamily.AUTO, OPTIONS, LETTERED),
        (PromptFamily.AUTO, OPEN, "Is it?"),
        (PromptFamily.MCQ, OPTIONS, LETTERED),
        (PromptFamily.FREE, OPTIONS, "Which?"),
        (PromptFamily.YES_NO, OPEN, "Is it?\nAnswer yes or no."),
        (PromptFamily.VQA, OPEN, "Is it?\nAnswer with a single word or a short phrase."),
    ],
)
def test_text(family, item, text):
    assert family_text(family)(item) == text


def test_only_the_automatic_form_continues_a_raw_text():
    assert render(OPEN, family_text(PromptFamily.AUTO)).endpoint == "generate"
    assert render(OPEN, family_text(PromptFamily.YES_NO)).endpoint == "chat"


def test_letters_need_options():
    with pytest.raises(ValueError, match="needs options"):
        family_text(PromptFamily.MCQ)(OPEN)
