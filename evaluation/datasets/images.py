"""Image cells of a table: base64, a list of base64, a short reference to another row, or paths."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path

from evaluation.datasets.image_store import ImageStore
from evaluation.datasets.item import Image

MAX_REFERENCE_LENGTH = 64  # a shorter cell names another row, as in VLMEvalKit


class ImageColumn:
    """The image cells of a table, decoded as the rows go by. `folder`: where relative paths start."""

    def __init__(self, store: ImageStore, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._by_index: dict[str, tuple[Image, ...]] = {}

    def decode(self, index: str, cell: str) -> tuple[Image, ...] | str:
        """Images of an `image` cell, or the index of the row that it refers to. ValueError for a damaged cell."""
        if len(cell) <= MAX_REFERENCE_LENGTH:
            return cell
        images = tuple(self._store.from_base64(text) for text in parse_cell_list(cell))
        self._by_index.setdefault(index, images)
        return images

    def resolve(self, images: tuple[Image, ...] | str) -> tuple[Image, ...]:
        """Images of a reference, once all rows were decoded. ValueError when it leads nowhere."""
        if not isinstance(images, str):
            return images
        if not images:
            return ()
        found = self._by_index.get(images)
        if found is None:
            raise ValueError(f"the image cell names row {images!r}, which holds no image")
        return found

    def from_paths(self, columns: Mapping[str, str]) -> tuple[Image, ...]:
        """Images of the `image_path` cell."""
        cell = columns.get("image_path", "")
        return tuple(self._store.from_file(self._folder / name) for name in parse_cell_list(cell)) if cell else ()


def parse_cell_list(cell: str) -> list[str]:
    """A cell that is one value, or a list literal of values (JSON or Python notation)."""
    if not cell.lstrip().startswith("["):
        return [cell]
    try:
        values = json.loads(cell)
    except (ValueError, RecursionError):
        values = _parse_python_list(cell)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("a list of images must hold texts only")
    return values


def _parse_python_list(cell: str) -> object:
    try:
        return ast.literal_eval(cell)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ValueError("the image cell starts like a list but is none") from None
