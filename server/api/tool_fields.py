"""Fields about functions that a model may call: definitions, which to choose, and calls in earlier messages."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from server.api.protocol import RequestBody
from server.errors import RequestError
from server.frontend.field_checks import shown


class FunctionDefinition(RequestBody):
    """parameters: JSON Schema of its arguments. strict: they must match it."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(RequestBody):
    """A function is the only kind there is."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(RequestBody):
    name: str


class NamedToolChoice(RequestBody):
    """This function and no other."""

    type: Literal["function"]
    function: FunctionName


def _word_or_object(value: Any) -> str:
    return "<one>" if isinstance(value, dict | NamedToolChoice) else "<text>"


type ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<text>")] | Annotated[NamedToolChoice, Tag("<one>")],
    Discriminator(_word_or_object),
]


class CalledFunction(RequestBody):
    """arguments: the text of a JSON object, or the object."""

    name: str
    arguments: Any = None


class MessageToolCall(RequestBody):
    """A call in an earlier answer."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it: the arguments are an object. Raises RequestError."""
        function = {"name": self.function.name, "arguments": self._arguments()}
        return {"type": "function", "function": function} | ({"id": self.id} if self.id else {})

    def _arguments(self) -> dict[str, Any]:
        arguments = self.function.arguments
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                arguments = self.function.arguments
        if arguments is None:
            return {}
        if not isinstance(arguments, dict):
            raise RequestError(
                f"messages: the arguments of the call of {shown(self.function.name)} must be the text of a JSON object",
                field="messages",
            )
        return arguments
