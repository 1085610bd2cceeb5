"""In which order what is left is asked: neighbours together, and the longest first near the end."""

from __future__ import annotations

from evaluation.plan import Question, in_order_of_asking
from evaluation.prompts import RenderedPrompt
from evaluation.run_directory.run_item import RunItem


def question(name: str, *, images: tuple[str, ...] = (), length: int = 1) -> Question:
    item = RunItem(key=name, item_id=name, row=1, columns={}, images=images)
    return Question(item, RenderedPrompt(endpoint="generate", text="x" * length))


def names(questions: list[Question]) -> list[str]:
    return [one.item.key for one in questions]


def test_questions_on_the_same_images_follow_one_another():
    rows = [question("a", images=("1",)), question("b", images=("2",)), question("c", images=("1",)), question("d")]
    assert names(in_order_of_asking(rows, 1))[:3] == ["a", "c", "b"]


def test_the_longest_of_the_last_come_first_and_the_others_stay():
    rows = [question(str(number), length=number + 1) for number in range(8)]
    assert names(in_order_of_asking(rows, 2)) == ["0", "1", "2", "3", "7", "6", "5", "4"]


def test_equal_ones_keep_their_order():
    rows = [question(str(number)) for number in range(4)]
    assert names(in_order_of_asking(rows, 8)) == ["0", "1", "2", "3"]
