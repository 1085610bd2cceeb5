"""From a row to what the model is asked: chat messages, or a raw text to continue.

A multiple-choice row becomes hint, question, options and one sentence that asks for the letter; any other row of a
table is asked as it stands; `PromptFamily` has the other usual forms. A Jinja template given by the user replaces the
text of the user's message. Images stand at the `<image>` markers of that text, or before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from evaluation.canonical import well_formed
from evaluation.datasets import Content, Image, Item, Message
from evaluation.datasets.placeholders import place_images
from evaluation.errors import DatasetError

LETTER_REQUEST = "Reply with the letter of the correct option only."
YES_NO_REQUEST = "Answer yes or no."
SHORT_ANSWER_REQUEST = "Answer with a single word or a short phrase."

type Renderer = Callable[[Item], str]


@dataclass(frozen=True, kw_only=True)
class RenderedPrompt:
    """What is asked. endpoint: "chat" sends `messages`, "generate" sends `text` with `images`."""

    endpoint: Literal["chat", "generate"]
    messages: tuple[Message, ...] = ()
    text: str = ""
    images: tuple[Image, ...] = ()
    kind: str = field(default="generate_until", init=False)

    @property
    def all_images(self) -> tuple[Image, ...]:
        """In the order in which they are shown."""
        return (*self.images, *(image for message in self.messages for image in images_in(message.content)))

    def content_with_digests(self) -> dict[str, Any]:
        """Everything the answer depends on, with digests in the place of image bytes."""
        return {
            "messages": [{"role": m.role, "content": _content_with_digests(m.content)} for m in self.messages],
            "text": self.text,
            "images": [{"sha256": image.sha256, "transform": "none"} for image in self.all_images],
        }


def images_in(content: Content) -> Iterator[Image]:
    """The images of a message."""
    return (part for part in content if isinstance(part, Image)) if not isinstance(content, str) else iter(())


def render(item: Item, renderer: Renderer) -> RenderedPrompt:
    """The prompt of a good row; ValueError when the row lacks what the renderer needs."""
    if item.raw_prompt is not None and renderer is default_text:
        return RenderedPrompt(endpoint="generate", text=item.raw_prompt, images=item.images)
    if item.messages is not None:
        return RenderedPrompt(endpoint="chat", messages=item.messages)
    message = Message("user", place_images(renderer(item), item.images))
    return RenderedPrompt(endpoint="chat", messages=(message,))


def default_text(item: Item) -> str:
    """Hint, question, options and the request for a letter, each only where the row has it."""
    if not item.options:
        return item.question
    lines = [f"Hint: {item.hint}"] if item.hint.strip() else []
    lines += [f"Question: {item.question}", "Options:"]
    lines += [f"{letter}. {text}" for letter, text in item.options.items()]
    return "\n".join([*lines, LETTER_REQUEST])


class PromptFamily(StrEnum):
    """Values of --prompt. AUTO: MCQ for rows with options, FREE for others."""

    AUTO = "auto"
    MCQ = "mcq"
    YES_NO = "yes_no"
    VQA = "vqa"
    FREE = "free"


def family_text(family: PromptFamily) -> Renderer:
    """How rows of this family are asked."""
    match family:
        case PromptFamily.AUTO:
            return default_text
        case PromptFamily.MCQ:
            return _mcq_text
        case PromptFamily.YES_NO:
            return lambda item: f"{item.question}\n{YES_NO_REQUEST}"
        case PromptFamily.VQA:
            return lambda item: f"{item.question}\n{SHORT_ANSWER_REQUEST}"
        case PromptFamily.FREE:
            return lambda item: item.question


def _mcq_text(item: Item) -> str:
    if not item.options:
        raise ValueError("--prompt mcq needs options, and this row has none")
    return default_text(item)


def template_text(source: str, name: str) -> Renderer:
    """Renderer from a Jinja template with the variables question, hint, options (letter to text) and row (columns).

    DatasetError for a template that does not parse. The template runs in Jinja's sandbox.
    """
    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=False)
    try:
        template = environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise DatasetError(f"{name}, line {error.lineno}: {error.message}") from None

    def text(item: Item) -> str:
        variables = {"question": item.question, "hint": item.hint, "options": item.options, "row": item.columns}
        try:
            return well_formed(template.render(variables))
        # A template may raise anything Python can (a division by zero, a missing attribute): the row is to blame,
        # or the template, and the user reads which in either case.
        except Exception as error:
            raise ValueError(f"the prompt template fails on this row: {error}") from None

    return text


def load_template(path: Path) -> str:
    """Text of a template file; DatasetError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path}: cannot read the prompt template: {error}") from None


def _content_with_digests(content: Content) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "sha256": part.sha256}
        for part in content
    ]
