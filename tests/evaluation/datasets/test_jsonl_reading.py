"""JSONL rows: what is asked, what is gold, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation.datasets import Item, Message, load_dataset


def load(tmp_path: Path, *rows: dict[str, Any] | str) -> list[Item]:
    path = tmp_path / "data.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return list(load_dataset(path).items)


def test_prompt_alone_is_raw_and_with_choices_is_a_question(tmp_path):
    raw, mcq = load(tmp_path, {"id": 1, "prompt": "p"}, {"id": 2, "prompt": "p", "choices": ["x", "y"], "answer": "y"})
    assert (raw.raw_prompt, raw.item_id) == ("p", "1")
    assert (mcq.raw_prompt, mcq.question, mcq.references) == (None, "p", ("B",))


def test_columns_are_vlmevalkits_and_keep_the_rest(tmp_path):
    row = {"category": "c", "id": "007", "question": "q", "choices": ["x", "y"], "answer": 1, "n": 1.50, "tags": ["a"]}
    (item,) = load(tmp_path, row)
    assert list(item.columns.items()) == [
        ("index", "007"), ("question", "q"), ("A", "x"), ("B", "y"), ("answer", "1"),
        ("category", "c"), ("n", "1.5"), ("tags", '["a"]'),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("choices", "answer", "letter"),
    [
        (["x", "y", "z"], "C", "C"),
        (["x", "y", "z"], "c", "C"),
        (["x", "y", "z"], "z", "C"),
        (["x", "y", "z"], 2, "C"),
        (["4", "2", "0"], 2, "B"),
        (["B", "A"], "A", "A"),
    ],
)
def test_gold_letter(tmp_path, choices, answer, letter):
    (item,) = load(tmp_path, {"question": "q", "choices": choices, "answer": answer})
    assert item.references == (letter,)


def test_several_acceptable_answers(tmp_path):
    (item,) = load(tmp_path, {"prompt": "q", "answer": ["yes", "yeah", 1]})
    assert item.references == ("yes", "yeah", "1")


def test_messages(tmp_path):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    (item,) = load(tmp_path, {"messages": messages})
    assert item.messages == (Message("system", "s"), Message("user", "u"))
    assert item.columns["question"] == "u"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "not valid JSON"),
        ("[1]", "not a JSON object"),
        ('{"question": NaN}', "NaN is not a JSON number"),
        ('{"question": "q", "x": 1e999}', "1e999 is not a JSON number"),
        ({}, "needs exactly one of"),
        ({"prompt": "p", "question": "q"}, "needs exactly one of"),
        ({"question": 5}, "'question' must hold text, not int"),
        ({"question": "q", "choices": "AB"}, "'choices' must be a list"),
        ({"question": "q", "choices": ["x"]}, "2 to 26 choices, this one has 1"),
        ({"question": "q", "choices": ["x", "x"]}, "two choices are equal"),
        ({"question": "q", "choices": ["x", "y"], "answer": 2}, "answer 2 is not a position among 2"),
        ({"question": "q", "choices": ["x", "y"], "answer": True}, "answer 'true' is neither"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "needs a role"),
        ({"messages": [{"role": "user", "content": 5}]}, "must be a text or a list of parts"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "a part of a message is"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "more parts of type 'image'"),
        ({"turns": []}, "at least one text"),
        ({"question": "q", "images": ["absent.png"]}, "No such file"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_bad_line_spoils_only_itself(tmp_path, row, reason):
    bad, good = load(tmp_path, row, {"prompt": "p"})
    assert bad.error is not None and reason in bad.error
    assert (bad.row, good.row, good.error) == (1, 2, None)


def test_lone_surrogates_and_blank_lines(tmp_path):
    (item,) = load(tmp_path, "", '{"id": "\\ud83d", "prompt": "\\ud83d\\ude00"}', "")
    assert (item.item_id, item.raw_prompt, item.row) == ("\ufffd", "\U0001f600", 2)
