"""easy-VQA from the installed package and from a directory of the same form."""

from __future__ import annotations

import json
import sys
from itertools import groupby

import pytest
from PIL import Image as PillowImage

from evaluation.datasets import load_dataset, with_sound_images
from evaluation.errors import DatasetError


@pytest.mark.parametrize(("split", "questions", "images"), [("test", 9_673, 1_000), ("train", 38_575, 4_000)])
def test_installed_package(split, questions, images):
    dataset = load_dataset(f"easy-vqa:{split}")
    assert not dataset.warnings
    assert len(dataset.items) == questions
    assert not any(item.error for item in dataset.items)
    runs = [image for image, _ in groupby(item.images for item in dataset.items)]
    assert len(runs) >= images and max(len(run) for run in runs) == 1
    assert len({item.columns["image_id"] for item in dataset.items}) == images
    assert len({item.references for item in dataset.items}) == 13
    assert "easy_vqa" not in sys.modules, "the package is found, not run"


def test_first_questions_in_the_order_of_the_file():
    items = with_sound_images(load_dataset("easy-vqa:test").items[:2])
    assert [(item.item_id, item.question, item.references) for item in items] == [
        ("0", "what is the red shape?", ("triangle",)),
        ("1", "what is the color of the triangle?", ("red",)),
    ]
    assert all(item.images[0].media_type == "image/png" for item in items)


def make_directory(folder, questions):
    (folder / "images").mkdir()
    for number, color in enumerate(("red", "blue")):
        PillowImage.new("RGB", (4, 4), color).save(folder / "images" / f"{number}.png")
    (folder / "questions.json").write_text(json.dumps(questions))
    return folder


def test_directory_and_its_bad_rows(tmp_path):
    folder = make_directory(tmp_path, [["q", "red", 0], ["q", "red"], ["q", "blue", 7], ["q", "blue", True], "x"])
    good, short, absent, boolean, text = load_dataset(folder).items
    assert (good.error, good.references) == (None, ("red",))
    assert "No such file" in absent.error
    for item in (short, boolean, text):
        assert item.error == "not [question, answer, image number]"


def test_digest_covers_the_pictures(tmp_path):
    folder = make_directory(tmp_path, [["q", "red", 0]])
    before = load_dataset(folder).sha256
    PillowImage.new("RGB", (4, 4), "green").save(folder / "images" / "0.png")
    assert load_dataset(folder).sha256 != before


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "holds questions.json"), ("{", "not valid JSON"), ("{}", "not a list"), ("[]", "no rows")],
)
def test_directory_that_is_none(tmp_path, content, reason):
    if content is not None:
        (tmp_path / "questions.json").write_text(content)
    with pytest.raises(DatasetError, match=reason):
        load_dataset(tmp_path)


def test_unknown_split():
    with pytest.raises(DatasetError, match="train and test, not 'dev'"):
        load_dataset("easy-vqa:dev")
