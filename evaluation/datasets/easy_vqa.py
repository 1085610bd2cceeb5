"""easy-VQA: questions on pictures of one coloured shape, from the installed package or a directory of the same form.

`questions.json` is a list of [question, answer, image number]; the picture is `images/<image number>.png`. About ten
questions follow one another on each picture.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

from evaluation.datasets.image_store import ImageStore
from evaluation.datasets.item import Item
from evaluation.errors import DatasetError

PREFIX = "easy-vqa:"
SPLITS = ("train", "test")
QUESTIONS_FILE = "questions.json"


def installed_split(name: str) -> Path:
    """Directory of a split (`easy-vqa:test`) inside the package `easy-vqa`, which is found but not imported."""
    split = name.removeprefix(PREFIX)
    if split not in SPLITS:
        raise DatasetError(f"easy-vqa has the splits {' and '.join(SPLITS)}, not {split!r}")
    package = importlib.util.find_spec("easy_vqa")
    if package is None or package.origin is None:
        raise DatasetError(f"{name} needs the package easy-vqa: pip install easy-vqa")
    return Path(package.origin).parent / "data" / split


def parse_directory(folder: Path) -> tuple[list[Item], str]:
    """Items in the order of the file, and the digest of questions and pictures together.

    DatasetError when the file cannot be used; a bad question or picture only spoils its row.
    """
    path = folder / QUESTIONS_FILE
    try:
        data = path.read_bytes()
        questions = json.loads(data)
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}; a data directory holds {QUESTIONS_FILE} and images/") from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(questions, list):
        raise DatasetError(f"{path}: not a list of [question, answer, image number]")
    store = ImageStore()
    items = [_item(row, question, folder / "images", store) for row, question in enumerate(questions, start=1)]
    digest = hashlib.sha256(data)
    for image in dict.fromkeys(image.sha256 for item in items for image in item.images):
        digest.update(image.encode())
    return items, digest.hexdigest()


def _item(row: int, question: Any, images: Path, store: ImageStore) -> Item:
    """Row numbers count from 1, indices from 0 as positions in the list do."""
    item = Item(item_id=str(row - 1), row=row, columns={"index": str(row - 1), "question": "", "answer": ""})
    match question:
        case [str(text), str(answer), int(number)] if not isinstance(number, bool):
            columns = {"index": item.item_id, "question": text, "answer": answer, "image_id": str(number)}
        case _:
            return item.as_bad("not [question, answer, image number]")
    item = Item(item_id=item.item_id, row=row, columns=columns, question=text, references=(answer,))
    try:
        image = store.from_file(images / f"{number}.png")
    except ValueError as error:
        return item.as_bad(str(error))
    return Item(item_id=item.item_id, row=row, columns=columns, question=text, references=(answer,), images=(image,))
