"""Prompts per kind of row, and templates of the user's own."""

from __future__ import annotations

import pytest

from evaluation.datasets import Item, Message
from evaluation.errors import DatasetError
from evaluation.plan import AskingSettings, plan_questions
from evaluation.prompts import LETTER_REQUEST, default_text, render, template_text

MCQ = Item(item_id="1", row=1, columns={"topic": "t"}, question="Which?", hint="Think.", options={"A": "x", "B": "y"})


def test_multiple_choice():
    prompt = render(MCQ, default_text)
    assert prompt.endpoint == "chat"
    assert prompt.messages[0].content == f"Hint: Think.\nQuestion: Which?\nOptions:\nA. x\nB. y\n{LETTER_REQUEST}"


def test_other_rows_are_asked_as_they_stand():
    assert render(Item(item_id="1", row=1, columns={}, question="Is it?"), default_text).messages == (
        Message("user", "Is it?"),
    )


def test_template_sees_question_hint_options_and_columns():
    source = "{{ row.topic }}|{{ hint }}|{{ question }}|{% for l, o in options.items() %}{{ l }}={{ o }};{% endfor %}"
    assert render(MCQ, template_text(source, "t")).messages[0].content == "t|Think.|Which?|A=x;B=y;"


def test_template_that_does_not_parse():
    with pytest.raises(DatasetError, match=r"p\.jinja, line 2"):
        template_text("ok\n{% for %}", "p.jinja")


@pytest.mark.parametrize("source", ["{{ row.absent }}", "{{ 1 / 0 }}", "{{ question.__class__.__mro__ }}"])
def test_template_that_fails_on_a_row_makes_it_a_bad_row(source):
    (question,) = plan_questions([MCQ], AskingSettings(renderer=template_text(source, "t")), "m")
    assert question.task is None
    assert question.item.error is not None and "template fails on this row" in question.item.error
