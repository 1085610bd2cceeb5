"""Markers in /generate's text, marks in chat templates, and literal markers that stay text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_preprocessing.errors import PlaceholderError
from image_preprocessing.placeholders import IMAGE_MARKER, image_marks, place_images, split_at_marks


@pytest.mark.parametrize(
    ("text", "num_images", "segments"),
    [
        ("What is it?", 0, ["What is it?"]),
        ("A literal <image> here", 0, ["A literal <image> here"]),
        ("What is it?", 2, [0, 1, "What is it?"]),
        ("", 1, [0]),
        ("", 0, []),
        ("<image>What?", 1, [0, "What?"]),
        ("Is <image> like <image>?", 2, ["Is ", 0, " like ", 1, "?"]),
        ("<image><image>", 2, [0, 1]),
        ("<Image> <image", 1, [0, "<Image> <image"]),
    ],
)
def test_generate(text, num_images, segments):
    assert place_images(text, num_images) == segments


@pytest.mark.parametrize(
    ("text", "num_images", "says"),
    [
        ("<image> <image>", 1, "1 image for 2 <image> markers"),
        ("<image>", 3, "3 images for 1 <image> marker:"),
    ],
)
def test_a_difference_names_both_numbers(text, num_images, says):
    with pytest.raises(PlaceholderError, match=says):
        place_images(text, num_images)


def test_another_marker():
    assert place_images("a <img> <image>", 1, marker="<img>") == ["a ", 0, " <image>"]


@given(st.lists(st.text(alphabet="ab <>image/", max_size=12), max_size=6))
def test_what_is_placed_can_be_joined_again(texts):
    text = IMAGE_MARKER.join(texts)
    segments = place_images(text, text.count(IMAGE_MARKER))
    assert "".join(IMAGE_MARKER if isinstance(segment, int) else segment for segment in segments) == text
    assert [segment for segment in segments if isinstance(segment, int)] == list(range(text.count(IMAGE_MARKER)))


def test_chat_places_images_by_their_parts_alone():
    texts = ["user: look <image> ", " and <image>!"]
    first, second = image_marks(2)
    rendered = f"<s>{texts[0]}{first}{texts[1]}{second}</s>"
    assert split_at_marks(rendered, [first, second]) == ["<s>user: look <image> ", 0, " and <image>!", 1, "</s>"]
    assert split_at_marks("no images", []) == ["no images"]


def test_marks_of_one_request_do_not_stand_in_another():
    """A text that was seen, mark and all, is only text the next time."""
    (old,), (new,) = image_marks(1), image_marks(1)
    assert split_at_marks(f"{old} {new}", [new]) == [f"{old} ", 0]


def test_marks_are_told_apart_when_there_are_many():
    marks = image_marks(120)
    assert split_at_marks("".join(marks), marks) == list(range(120))


@pytest.mark.parametrize("order", [[0], [1, 0], [0, 1, 1], [0, 0, 1], []])
def test_a_template_that_loses_repeats_or_reorders_images(order):
    marks = image_marks(2)
    with pytest.raises(PlaceholderError, match="the chat template places image"):
        split_at_marks("".join(marks[index] for index in order), marks)
