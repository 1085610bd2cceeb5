"""How a conversation becomes a prompt, beside its messages."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerFast

from server.errors import RequestError

_TAKEN_NAMES = frozenset(inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters) | {"messages"}
"""What the library itself takes, the template among it, is not for a request to set."""


class ChatOptions(NamedTuple):
    """add_generation_prompt: end with the beginning of an assistant's message. continue_final_message: leave the last
    message open, to be continued; not together with the former. variables: further ones that the template may use.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = {}

    @classmethod
    def of_request(
        cls,
        add_generation_prompt: bool | None,
        continue_final_message: bool | None,
        chat_template_kwargs: Mapping[str, Any] | None,
    ) -> ChatOptions:
        """From the fields of that name. Raises RequestError for what contradicts itself or is not a client's to set."""
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "continue_final_message continues the last message, so add_generation_prompt cannot be true",
                field="continue_final_message",
            )
        for name in chat_template_kwargs or {}:
            if name in _TAKEN_NAMES:
                raise RequestError(
                    f"chat_template_kwargs.{name} cannot be set; it is for variables of the chat template",
                    field=f"chat_template_kwargs.{name}",
                )
        add = not continue_final_message if add_generation_prompt is None else add_generation_prompt
        return cls(add, bool(continue_final_message), chat_template_kwargs or {})


NEW_ANSWER = ChatOptions()
