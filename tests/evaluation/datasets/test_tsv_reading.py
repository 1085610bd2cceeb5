"""VLMEvalKit tables: cells stay text, bad rows spoil only themselves."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from evaluation.datasets import Item, load_dataset
from evaluation.errors import DatasetError

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def load(tmp_path: Path, content: str | bytes) -> list[Item]:
    path = tmp_path / "data.tsv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(load_dataset(path).items)


def test_cells_stay_text(tmp_path):
    (item,) = load(tmp_path, "index\tquestion\tA\tB\tanswer\tsplit\n007\tNA\tnull\t1.0\tA\tnan\n")
    assert item.item_id == "007"
    assert item.columns == {
        "index": "007", "question": "NA", "A": "null", "B": "1.0", "answer": "A", "split": "nan"
    }  # fmt: skip
    assert item.options == {"A": "null", "B": "1.0"}
    assert item.references == ("A",)


def test_quoted_cells_and_byte_order_mark(tmp_path):
    (item,) = load(tmp_path, '\ufeffindex\tquestion\n1\t"two\tcells? ""no""\nreally"\n')
    assert item.question == 'two\tcells? "no"\nreally'


def test_answer_may_be_the_text_of_an_option(tmp_path):
    (item,) = load(tmp_path, "index\tquestion\tA\tB\tC\tanswer\n1\tq\tred\tblue\t\tblue\n")
    assert item.options == {"A": "red", "B": "blue"}
    assert item.references == ("B",)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"1\tq\tx\ty\n", "4 cells where the header has 5"),
        (b"1\tq\tx\ty\tA\textra\n", "6 cells where the header has 5"),
        (b"1\tq\tx\ty\tE\n", "answer 'E' is neither an option's letter nor its text"),
        (b"1\t \tx\ty\tA\n", "the question is empty"),
        (b"1\t\xff\tx\ty\tA\n", "not valid UTF-8"),
    ],
)
def test_bad_row_spoils_only_itself(tmp_path, row, reason):
    bad, good = load(tmp_path, b"index\tquestion\tA\tB\tanswer\n" + row + b"2\tq\tx\ty\tB\n")
    assert (bad.row, bad.error) == (1, reason)
    assert (good.row, good.error, good.references) == (2, None, ("B",))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "empty"),
        ("index\tquestion\n", "no rows"),
        ("id\tquestion\n1\tq\n", "column 'index' is missing; the columns are: id, question"),
        ("index\tquestion\tA\tA\n1\tq\tx\ty\n", "column 'A' appears twice"),
        ("index\tquestion\tprediction\n1\tq\tx\n", "rename column 'prediction'"),
    ],
)
def test_unusable_table(tmp_path, content, reason):
    with pytest.raises(DatasetError, match=reason):
        load(tmp_path, content)


def test_unknown_ending_and_missing_file(tmp_path):
    with pytest.raises(DatasetError, match=r"\.tsv or \.jsonl"):
        load_dataset(tmp_path / "data.csv")
    with pytest.raises(DatasetError, match="No such file"):
        load_dataset(tmp_path / "data.tsv")


def test_images_inline_as_list_by_reference_and_by_path(tmp_path):
    encoded = base64.b64encode(PNG).decode()
    (tmp_path / "dot.png").write_bytes(PNG)
    items = load(
        tmp_path,
        f"index\timage\timage_path\tquestion\n0\t{encoded}\t\tq\n1\t['{encoded}', '{encoded}']\t\tq\n2\t0\t\tq\n"
        "3\t\tdot.png\tq\n4\t\t\tq\n",
    )
    assert [len(item.images) for item in items] == [1, 2, 1, 1, 0]
    assert {image.sha256 for item in items for image in item.images} == {items[0].images[0].sha256}
    assert items[0].images[0].media_type == "image/png"
    assert all("image" not in item.columns for item in items)


@pytest.mark.parametrize(
    ("image", "image_path", "reason"),
    [
        ("9", "", "the image cell names row '9', which holds no image"),
        ("x" * 70, "", "not valid base64"),
        (base64.b64encode(b"text, not an image" * 5).decode(), "", "neither PNG"),
        ("[1, 2]" + " " * 70, "", "texts only"),
        ("[__import__('os')]" + " " * 70, "", "starts like a list but is none"),
        ("", "absent.png", "No such file"),
    ],
)
def test_bad_image_spoils_only_its_row(tmp_path, image, image_path, reason):
    bad, good = load(tmp_path, f"index\timage\timage_path\tquestion\n0\t{image}\t{image_path}\tq\n1\t\t\tq\n")
    assert bad.error is not None and reason in bad.error
    assert good.error is None
