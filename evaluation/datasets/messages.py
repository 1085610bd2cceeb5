"""Chats of a JSONL row: texts, or lists of parts as OpenAI and Hugging Face write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from evaluation.canonical import well_formed
from evaluation.datasets.item import Content, Image, Message

_ROLES = ("system", "user", "assistant")


def parse_messages(value: Any, images: Sequence[Image], read_image: Callable[[str], Image]) -> tuple[Message, ...]:
    """Messages of a row. `images`: the row's own list; `read_image`: from a path or a `data:` URL.

    A part `{"type": "image"}` without a source shows the next of `images`; when there is no such part, all of them are
    shown at the head of the last message of the user. ValueError says what is wrong.
    """
    if not isinstance(value, list) or not value:
        raise ValueError("'messages' must be a list with at least one message")
    following = iter(images)
    messages = [_message(message, following, read_image) for message in value]
    left = tuple(following)
    if left and len(left) < len(images):
        raise ValueError(f"{len(left)} of the {len(images)} images have no part of type 'image' in 'messages'")
    return _with_images_at_head(messages, left) if left else tuple(messages)


def text_of(content: Content) -> str:
    """The texts of a message, without its images."""
    return content if isinstance(content, str) else "".join(part for part in content if isinstance(part, str))


def _message(message: Any, following: Iterator[Image], read_image: Callable[[str], Image]) -> Message:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise ValueError(f"every message needs a role, one of {', '.join(_ROLES)}")
    content = message.get("content")
    if isinstance(content, str):
        return Message(message["role"], well_formed(content))
    if not isinstance(content, list):
        raise ValueError("the content of every message must be a text or a list of parts")
    return Message(message["role"], tuple(_part(part, following, read_image) for part in content))


def _part(part: Any, following: Iterator[Image], read_image: Callable[[str], Image]) -> str | Image:
    match part:
        case {"type": "text", "text": str(text)}:
            return well_formed(text)
        case {"type": "image_url", "image_url": {"url": str(source)} | str(source)}:
            return read_image(source)
        case {"type": "image", "image": str(source)} | {"type": "image", "path": str(source)}:
            return read_image(source)
        case {"type": "image", "url": str(source)}:
            return read_image(source)
        case {"type": "image"} if not {"image", "path", "url"} & part.keys():
            image = next(following, None)
            if image is None:
                raise ValueError("'messages' has more parts of type 'image' than the row has 'images'")
            return image
    raise ValueError("a part of a message is {type: text, text}, {type: image, image} or {type: image_url, image_url}")


def _with_images_at_head(messages: list[Message], images: tuple[Image, ...]) -> tuple[Message, ...]:
    place = max((i for i, message in enumerate(messages) if message.role == "user"), default=None)
    if place is None:
        raise ValueError("'images' needs a message of the user")
    content = messages[place].content
    rest = content if not isinstance(content, str) else (content,) if content else ()
    messages[place] = Message("user", (*images, *rest))
    return tuple(messages)
