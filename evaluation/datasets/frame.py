"""VLMEvalKit's dataset objects: a DataFrame, a name, and a function that makes a row's prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from evaluation.canonical import sha256_json, well_formed
from evaluation.datasets.image_store import ImageStore
from evaluation.datasets.item import Content, Image, Item, Message
from evaluation.datasets.load import Dataset, with_unique_ids
from evaluation.datasets.options import gold_letter, options_of_columns
from evaluation.errors import DatasetError

_IMAGE_COLUMN = "image"


class PromptDataset(Protocol):
    """data: a pandas DataFrame with a column `index`. build_prompt: from one of its rows to a text, or to a list of
    {type: "text" | "image", value, role?}; an image's value is a path or a `data:` URL."""

    data: Any
    dataset_name: str

    def build_prompt(self, row: Any) -> Any: ...


def dataset_of_frame(source: PromptDataset) -> Dataset:
    """Its rows, each with the chat that `build_prompt` makes of it. A row for which that fails is a bad row.

    DatasetError when the frame has no rows or no column `index`.
    """
    names = [str(name) for name in source.data.columns]
    if "index" not in names or not len(source.data):
        raise DatasetError(f"{source.dataset_name}: its data need a column 'index' and at least one row")
    store = ImageStore()
    items = [_item(number, names, row, source, store) for number, (_, row) in enumerate(source.data.iterrows(), 1)]
    unique, warnings = with_unique_ids(items)
    content = [[item.columns, [image.sha256 for image in item.all_images()], _texts(item)] for item in unique]
    return Dataset(
        name=source.dataset_name,
        short_name=source.dataset_name,
        location=source.dataset_name,
        sha256=sha256_json(content),
        items=tuple(unique),
        warnings=tuple(warnings),
    )


def _item(number: int, names: Sequence[str], row: Any, source: PromptDataset, store: ImageStore) -> Item:
    columns = {name: _cell(value) for name, value in zip(names, row, strict=True) if name != _IMAGE_COLUMN}
    options = options_of_columns(columns)
    item = Item(
        item_id=columns["index"],
        row=number,
        columns=columns,
        question=columns.get("question", ""),
        options=options,
        references=_references(columns.get("answer", ""), options),
    )
    try:
        messages = messages_of_prompt(source.build_prompt(row), store)
    except Exception as error:  # the function is the user's and may raise anything
        return item.as_bad(f"build_prompt: {error or type(error).__name__}")
    return Item(**{**vars(item), "messages": messages})


def messages_of_prompt(prompt: Any, store: ImageStore) -> tuple[Message, ...]:
    """Parts of one role that follow one another are one message; without a role they are the user's. ValueError for
    what is no prompt."""
    parts = [{"type": "text", "value": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(parts, list) or not parts:
        raise ValueError("a prompt is a text or a list of {type, value}")
    messages: list[tuple[str, list[str | Image]]] = []
    for part in parts:
        role = part.get("role", "user")
        if not messages or messages[-1][0] != role:
            messages.append((role, []))
        messages[-1][1].append(_part(part, store))
    return tuple(Message(role, _content(parts_of_role)) for role, parts_of_role in messages)


def _part(part: Mapping[str, Any], store: ImageStore) -> str | Image:
    match part:
        case {"type": "text", "value": value}:
            return well_formed(str(value))
        case {"type": "image", "value": str(value)} if value.startswith("data:"):
            return store.from_base64(value)
        case {"type": "image", "value": str() | Path() as value}:
            return store.from_file(Path(value))
    raise ValueError(f"a part of a prompt is text or an image, not {part.get('type')!r}")


def _content(parts: Sequence[str | Image]) -> Content:
    match parts:
        case [str(text)]:
            return text
    return tuple(parts)


def _texts(item: Item) -> list[str]:
    contents = [message.content for message in item.messages or ()]
    return [part for content in contents for part in ((content,) if isinstance(content, str) else content)
            if isinstance(part, str)]  # fmt: skip


def _cell(value: Any) -> str:
    """As VLMEvalKit's own tables hold it: nothing for a missing value, a whole number without a fraction."""
    if _is_missing(value):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return well_formed(str(value))


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)  # NaN and NaT alone differ from themselves
    except TypeError:  # pandas.NA, whose comparisons are neither true nor false
        return True
    except ValueError:  # an array, which is compared element by element
        return False


def _references(answer: str, options: Mapping[str, str]) -> tuple[str, ...]:
    """For scoring later; an answer that names no option does not keep the row from being asked."""
    if not answer.strip():
        return ()
    if not options:
        return (answer,)
    try:
        return (gold_letter(answer, options),)
    except ValueError:
        return ()
