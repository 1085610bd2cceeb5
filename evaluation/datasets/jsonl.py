"""JSONL: one JSON object a line with `id`, `prompt` or `question` or `messages`, `images`, `choices`, `answer`.

`prompt` without choices is continued as it is (a base model's completion); `question`, or `prompt` with `choices`, is
put into a chat; `messages` are a chat already. `answer` is a letter, a choice's text, the position of a choice counted
from 0 (a JSON integer), or a list of acceptable texts. Other keys are kept as columns.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from evaluation.canonical import canonical_json, well_formed
from evaluation.datasets.images import decode_image, read_image_file
from evaluation.datasets.item import Image, Item
from evaluation.datasets.options import LETTERS, gold_letter, options_of_choices

_ROLES = ("system", "user", "assistant")
_SPECIAL = ("id", "index", "question", "prompt", "choices", "images", "answer", "hint")


def parse_jsonl(data: bytes, path: Path) -> list[Item]:
    """Items of a file; blank lines are skipped, a bad line only spoils itself."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [_item(number, line, path.parent) for number, line in enumerate(lines, start=1) if line.strip()]


def _item(number: int, line: bytes, folder: Path) -> Item:
    unread = Item(item_id=f"row{number}", row=number, columns={"index": f"row{number}"})
    try:
        row = json.loads(line, parse_constant=_refuse_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        return unread.as_bad(f"not valid JSON: {error}")
    if not isinstance(row, dict):
        return unread.as_bad("not a JSON object")
    item_id = _text(row.get("id", row.get("index", f"row{number}")))
    try:
        return _complete(item_id, number, row, folder)
    except ValueError as error:
        return Item(item_id=item_id, row=number, columns=_columns(item_id, row, {})).as_bad(str(error))


def _refuse_number(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_number(text)


def _complete(item_id: str, number: int, row: dict[str, Any], folder: Path) -> Item:
    sources = [name for name in ("messages", "prompt", "question") if row.get(name) not in (None, "")]
    if len(sources) != 1:
        raise ValueError(f"needs exactly one of 'messages', 'prompt' and 'question', has {sources or 'none'}")
    options = _options(row)
    images = _images(row, folder)
    messages = _messages(row["messages"]) if sources == ["messages"] else None
    if messages and images:
        raise ValueError("'images' goes with 'prompt' or 'question', not with 'messages'")
    question = messages[-1]["content"] if messages else _string(row[sources[0]], sources[0])
    is_raw = sources == ["prompt"] and not options and not images
    return Item(
        item_id=item_id,
        row=number,
        columns=_columns(item_id, row, options, question),
        question=question,
        hint=_string(row.get("hint") or "", "hint"),
        options=options,
        references=_references(row.get("answer"), options),
        images=images,
        messages=messages,
        raw_prompt=question if is_raw else None,
    )


def _options(row: dict[str, Any]) -> dict[str, str]:
    choices = row.get("choices")
    if choices is None:
        return {}
    if not isinstance(choices, list):
        raise ValueError("'choices' must be a list of texts")
    return options_of_choices([_string(choice, "choices") for choice in choices])


def _images(row: dict[str, Any], folder: Path) -> tuple[Image, ...]:
    values = row.get("images") or []
    if not isinstance(values, list):
        raise ValueError("'images' must be a list of paths or data: URLs")
    texts = [_string(value, "images") for value in values]
    return tuple(decode_image(text) if text.startswith("data:") else read_image_file(folder / text) for text in texts)


def _messages(value: Any) -> tuple[dict[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("'messages' must be a list with at least one message")
    for message in value:
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise ValueError(f"every message needs a role, one of {', '.join(_ROLES)}")
        if not isinstance(message.get("content"), str):
            raise ValueError("the content of every message must be a text")
    return tuple({"role": message["role"], "content": well_formed(message["content"])} for message in value)


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
            columns.setdefault(well_formed(name), _text(value))
    return columns


def _string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"'{name}' must hold text, not {type(value).__name__}")
    return well_formed(value)


def _text(value: Any) -> str:
    """A JSON value as a cell: a text is itself, anything else its canonical JSON."""
    return well_formed(value) if isinstance(value, str) else canonical_json(value).decode()
