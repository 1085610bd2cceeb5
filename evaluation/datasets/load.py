"""A data set as a whole: format by its name, digest of its bytes, unique item ids."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evaluation.datasets.easy_vqa import PREFIX, installed_split, parse_directory
from evaluation.datasets.image_store import broken_images
from evaluation.datasets.item import Item
from evaluation.datasets.jsonl import parse_jsonl
from evaluation.datasets.tsv import parse_tsv
from evaluation.errors import DatasetError

_PARSERS = {".tsv": parse_tsv, ".jsonl": parse_jsonl}
RESULT_COLUMN = "prediction"


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """name: as the user gave it. short_name: without folders and ending, as in names of result files. location: where
    it is. sha256: hexadecimal digest of its contents. warnings: what the user should know before the run."""

    name: str
    short_name: str
    location: str
    sha256: str
    items: tuple[Item, ...]
    warnings: tuple[str, ...]


def load_dataset(source: Path | str) -> Dataset:
    """Read a TSV or JSONL file, a directory of questions and images, or `easy-vqa:SPLIT`.

    DatasetError when it cannot be used as a whole. Images are read, but not yet opened: see `with_sound_images`.
    """
    name = str(source)
    path = installed_split(name) if name.startswith(PREFIX) else Path(source)
    items, digest = parse_directory(path) if path.is_dir() else _parse_file(path)
    if not items:
        raise DatasetError(f"{name}: there are no rows in it")
    if any(RESULT_COLUMN in item.columns for item in items):
        raise DatasetError(f"{name}: rename column {RESULT_COLUMN!r}, the results are written under that name")
    unique, warnings = with_unique_ids(items)
    return Dataset(
        name=name,
        short_name=name.replace(":", "_") if name.startswith(PREFIX) else path.absolute().stem,
        location=str(path.absolute()),
        sha256=digest,
        items=tuple(unique),
        warnings=tuple(warnings),
    )


def _parse_file(path: Path) -> tuple[list[Item], str]:
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        known = " or ".join(_PARSERS)
        raise DatasetError(f"{path}: unknown kind of data; a file's name must end in {known} (or name a directory)")
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            return parse(file, path), digest
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from None


def with_unique_ids(items: list[Item]) -> tuple[list[Item], list[str]]:
    """Items whose ids repeat get their row number appended, every one of them; a warning says so."""
    repeated = {item_id for item_id, count in Counter(item.item_id for item in items).items() if count > 1}
    if not repeated:
        return items, []
    unique = [replace(i, item_id=f"{i.item_id}#row{i.row}") if i.item_id in repeated else i for i in items]
    example = min(repeated)
    return unique, [
        f"{len(repeated)} index value(s) appear more than once, for instance {example!r}; "
        "the row number is appended to tell these rows apart"
    ]


def with_sound_images(items: Sequence[Item]) -> list[Item]:
    """The same rows; those with an image that does not open are marked bad."""
    broken = broken_images(image for item in items for image in item.all_images())
    checked = []
    for item in items:
        reasons = [broken[image.sha256] for image in item.all_images() if image.sha256 in broken]
        checked.append(item.as_bad(reasons[0]) if reasons else item)
    return checked
