"""JSONL: one JSON object a line with `id`, `prompt`, `question`, `messages` or `turns`, `images`, `choices`, `answer`.

`prompt` without choices is continued as it is (a base model's completion); `question`, or `prompt` with `choices`, is
put into a chat; `messages` are a chat already; `turns` are what a user says one after another. `images` are paths or
`data:` URLs, shown at the `<image>` markers of the text, or before it. `answer` is a letter, a choice's text, the
position of a choice counted from 0 (a JSON integer), or a list of acceptable texts. Other keys are kept as columns.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from evaluation.canonical import canonical_json, well_formed
from evaluation.datasets.image_store import ImageStore
from evaluation.datasets.item import Image, Item
from evaluation.datasets.messages import parse_messages, text_of
from evaluation.datasets.options import LETTERS, gold_letter, options_of_choices
from evaluation.datasets.placeholders import place_images

_SOURCES = ("messages", "prompt", "question", "turns")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SPECIAL = ("id", "index", "question", "prompt", "choices", "images", "answer", "hint")


def parse_jsonl(lines: Iterable[bytes], path: Path) -> list[Item]:
    """Items of a file; blank lines are skipped, a bad line only spoils itself."""
    reader = _RowReader(ImageStore(), path.parent)
    return [_item(number, line, reader) for number, line in enumerate(lines, start=1) if line.strip()]


def _item(number: int, line: bytes, reader: _RowReader) -> Item:
    unread = Item(item_id=f"row{number}", row=number, columns={"index": f"row{number}"})
    try:
        row = json.loads(line.removeprefix(_BYTE_ORDER_MARK), parse_constant=_refuse_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        return unread.as_bad(f"not valid JSON: {error}")
    if not isinstance(row, dict):
        return unread.as_bad("not a JSON object")
    item_id = _text(row.get("id", row.get("index", f"row{number}")))
    try:
        return reader.complete(item_id, number, row)
    except ValueError as error:
        return Item(item_id=item_id, row=number, columns=_columns(item_id, row, {})).as_bad(str(error))


def _refuse_number(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_number(text)


class _RowReader:
    """Reads rows of one file. `folder`: where relative image paths start."""

    def __init__(self, store: ImageStore, folder: Path) -> None:
        self._store = store
        self._folder = folder

    def complete(self, item_id: str, number: int, row: dict[str, Any]) -> Item:
        """The item of a row; ValueError says what is wrong with it."""
        sources = [name for name in _SOURCES if row.get(name) not in (None, "")]
        if len(sources) != 1:
            raise ValueError(
                f"needs exactly one of 'messages', 'prompt', 'question' and 'turns', has {sources or 'none'}"
            )
        (source,) = sources
        options = _options(row)
        images = self._images(row)
        messages = parse_messages(row["messages"], images, self._image) if source == "messages" else None
        turns = _turns(row["turns"]) if source == "turns" else ()
        question = text_of(messages[-1].content) if messages else turns[0] if turns else _string(row[source], source)
        place_images("" if messages else question, () if messages else images)  # a wrong number of markers is told now
        return Item(
            item_id=item_id,
            row=number,
            columns=_columns(item_id, row, options, question),
            question=question,
            hint=_string(row.get("hint") or "", "hint"),
            options=options,
            references=_references(row.get("answer"), options),
            images=() if messages else images,
            messages=messages,
            raw_prompt=question if source == "prompt" and not options else None,
            turns=turns,
        )

    def _images(self, row: dict[str, Any]) -> tuple[Image, ...]:
        values = row.get("images") or []
        if not isinstance(values, list):
            raise ValueError("'images' must be a list of paths or data: URLs")
        return tuple(self._image(_string(value, "images")) for value in values)

    def _image(self, source: str) -> Image:
        if source.startswith("data:"):
            return self._store.from_base64(source)
        if source.startswith(("http://", "https://")):
            raise ValueError(f"image {source[:80]}: addresses are not fetched; save the image and name its file")
        return self._store.from_file(self._folder / source.removeprefix("file://"))


def _turns(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("'turns' must be a list with at least one text")
    return tuple(_string(turn, "turns") for turn in value)


def _options(row: dict[str, Any]) -> dict[str, str]:
    choices = row.get("choices")
    if choices is None:
        return {}
    if not isinstance(choices, list):
        raise ValueError("'choices' must be a list of texts")
    return options_of_choices([_string(choice, "choices") for choice in choices])


def _references(answer: Any, options: dict[str, str]) -> tuple[str, ...]:
    if answer is None:
        return ()
    if not options:
        answers = answer if isinstance(answer, list) else [answer]
        return tuple(_text(entry) for entry in answers)
    if isinstance(answer, int) and not isinstance(answer, bool) and str(answer) not in options.values():
        if not 0 <= answer < len(options):
            raise ValueError(f"answer {answer} is not a position among {len(options)} choices (counted from 0)")
        return (LETTERS[answer],)
    return (gold_letter(_text(answer), options),)


def _columns(item_id: str, row: dict[str, Any], options: dict[str, str], question: str = "") -> dict[str, str]:
    """The row as VLMEvalKit's columns: index, question, hint, A, B, ..., answer, then whatever else it has."""
    columns = {"index": item_id, "question": question or _text(row.get("question", row.get("prompt", "")))}
    if "hint" in row:
        columns["hint"] = _text(row["hint"])
    columns.update(options)
    if "answer" in row:
        columns["answer"] = _text(row["answer"])
    for name, value in row.items():
        if name not in _SPECIAL:
            columns.setdefault(well_formed(name), _text(_without_image_data(value)))
    return columns


def _without_image_data(value: Any) -> Any:
    """The same JSON value with digests in the place of `data:` URLs: columns go to files, image bytes never do."""
    match value:
        case str() if value.startswith("data:"):
            return "sha256:" + hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
        case list():
            return [_without_image_data(entry) for entry in value]
        case dict():
            return {name: _without_image_data(entry) for name, entry in value.items()}
    return value


def _string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"'{name}' must hold text, not {type(value).__name__}")
    return well_formed(value)


def _text(value: Any) -> str:
    """A JSON value as a cell: a text is itself, anything else its canonical JSON."""
    return well_formed(value) if isinstance(value, str) else canonical_json(value).decode()
