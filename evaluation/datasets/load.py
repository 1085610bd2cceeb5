"""A data file as a whole: format by its ending, digest of its bytes, unique item ids."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from evaluation.datasets.item import Item
from evaluation.datasets.jsonl import parse_jsonl
from evaluation.datasets.tsv import parse_tsv
from evaluation.errors import DatasetError

_PARSERS = {".tsv": parse_tsv, ".jsonl": parse_jsonl}
RESULT_COLUMN = "prediction"


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data file. sha256: hexadecimal digest of the file. warnings: what the user should know before the run."""

    path: Path
    sha256: str
    items: tuple[Item, ...]
    warnings: tuple[str, ...]


def load_dataset(path: Path) -> Dataset:
    """Read a TSV or JSONL file; DatasetError when it cannot be used as a whole."""
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        raise DatasetError(f"{path}: unknown kind of data file; its name must end in {' or '.join(_PARSERS)}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from None
    items = parse(data, path)
    if not items:
        raise DatasetError(f"{path}: there are no rows in it")
    if any(RESULT_COLUMN in item.columns for item in items):
        raise DatasetError(f"{path}: rename column {RESULT_COLUMN!r}, the results are written under that name")
    unique, warnings = with_unique_ids(items)
    digest = hashlib.sha256(data).hexdigest()
    return Dataset(path=path, sha256=digest, items=tuple(unique), warnings=tuple(warnings))


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
