"""Text to token ids and back, without torch: one Hugging Face fast tokenizer and the rules for text from outside.

Text that a user wrote never becomes a control token. Control tokens are the tokenizer's special tokens and the other
added tokens that its chat template writes (`<tool_call>`); a literal `<|im_end|>` in a prompt or in a message is
tokenised as the characters it consists of. A client that wants control tokens in a prompt sends token ids.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from server.errors import ConfigurationError, RequestError
from server.frontend.chat_options import NEW_ANSWER, ChatOptions

# What the expressions of a template can raise, given messages or variables that it was not written for.
_TEMPLATE_ERRORS = (
    TemplateError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError,
)  # fmt: skip


class PromptTokenizer:
    """The served model's tokenizer.

    eos_token_ids: the tokens that end a sequence (the tokenizer's own, and `generation_config.json`'s beside it).
    special_token_ids: tokens that are not text. vocab_size: ids are below it. backend: the tokenizers library's object,
    for detokenising.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, eos_token_ids: Sequence[int] = ()) -> None:
        self._chat = tokenizer
        self.backend: Tokenizer = tokenizer.backend_tokenizer
        self._plain = _plain_text_tokenizer(self.backend, tokenizer.chat_template)
        self.special_token_ids = frozenset(tokenizer.all_special_ids) | frozenset(
            token_id for token_id, token in self.backend.get_added_tokens_decoder().items() if token.special
        )
        self._renderer = _renderer_of(tokenizer)
        base_size: int = self.backend.get_vocab_size(with_added_tokens=False)
        self.vocab_size = max(base_size, *(1 + token_id for token_id in self.backend.get_added_tokens_decoder()), 1)
        self._prefix_ids = _prefix_of(self._plain)
        own_eos = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self.eos_token_ids = tuple(dict.fromkeys((*own_eos, *eos_token_ids)))

    @classmethod
    def load(cls, path: Path, chat_template: Path | None = None) -> PromptTokenizer:
        """Read a directory that holds `tokenizer.json`, or such a file.

        chat_template: a Jinja file to use in place of the tokenizer's own. Raises ConfigurationError naming the file.
        """
        file = path / "tokenizer.json" if path.is_dir() else path
        directory = file.parent
        if not file.is_file():
            raise ConfigurationError(
                f"{file}: no such file. Point --tokenizer-model at a directory with a tokenizer.json "
                "(save_pretrained of a Hugging Face fast tokenizer writes one)."
            )
        try:
            if file.name == "tokenizer.json":  # the files beside it, such as the chat template, belong to it
                tokenizer = PreTrainedTokenizerFast.from_pretrained(str(directory), local_files_only=True)
            else:
                tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file))
        except Exception as error:  # the tokenizers library raises bare Exception for a damaged file
            raise ConfigurationError(f"{file}: cannot read the tokenizer: {error}") from error
        if chat_template is not None:
            tokenizer.chat_template = _read_text(chat_template)
        return cls(tokenizer, _generation_config_eos(directory))

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can work."""
        return self._chat.chat_template is not None

    def template_uses(self, variable: str) -> bool:
        """Whether the chat template mentions a variable of this name."""
        if not self.has_chat_template:
            return False
        template: str = self._chat.get_chat_template(tools=[{}] if variable == "tools" else None)
        return re.search(rf"\b{re.escape(variable)}\b", template) is not None

    def added_ids_of(self, texts: Iterable[str]) -> dict[str, int]:
        """The ids of those texts that are added tokens, each a token of its own whatever stands around it."""
        added = self.backend.get_added_tokens_decoder()
        ids = ((text, self.backend.token_to_id(text)) for text in texts)
        return {text: token_id for text, token_id in ids if token_id is not None and token_id in added}

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, where the model has one."""
        bos: int | None = self._chat.bos_token_id
        return bos

    def description(self) -> dict[str, Any]:
        """Names of its special tokens, its chat template, and what a client needs to do its work."""
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{name: getattr(self._chat, name) for name in names},
            "additional_special_tokens": sorted(self._chat.all_special_tokens),
            "add_bos_token": bool(self._prefix_ids),
            "vocab_size": self.vocab_size,
            "chat_template": self._chat.chat_template,
        }

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of plain text. add_special_tokens: with what the tokenizer adds by itself, such as BOS."""
        return self._plain.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a whole sequence, control tokens included."""
        return self.backend.decode(list(token_ids), skip_special_tokens=False)

    def encode_chat(self, messages: Sequence[dict[str, Any]], options: ChatOptions = NEW_ANSWER) -> list[int]:
        """Token ids of a conversation rendered by the chat template, ready for the assistant's answer.

        The template's own control tokens become control tokens; those in the messages and in the options' variables do
        not. Raises RequestError when there is no template or the template refuses the conversation.
        """
        return list(self._apply_template(self._chat, messages, options))

    def render_chat(self, messages: Sequence[dict[str, Any]], options: ChatOptions = NEW_ANSWER) -> str:
        """The same conversation as text, in which control tokens of the messages are still told from the template's.

        Only `encode_rendered` understands it; it may be cut into pieces before. Raises as `encode_chat` does.
        """
        rendered: str = self._apply_template(self._renderer, messages, options)
        return rendered

    def encode_rendered(self, piece: str) -> list[int]:
        """Token ids of a piece of a rendered conversation."""
        token_ids: list[int] = self._chat(piece, add_special_tokens=False, sanitize_control_tokens=True)["input_ids"]
        return token_ids

    def encode_plain(self, text: str, *, is_beginning: bool) -> list[int]:
        """Token ids of a piece of plain text; what the tokenizer adds by itself comes before a beginning only."""
        token_ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return [*self._prefix_ids, *token_ids] if is_beginning else token_ids

    def encode_control(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of text whose control tokens are meant as such; never of a prompt's text."""
        token_ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        return token_ids

    def with_bos(self, token_ids: Sequence[int], *, wanted: bool) -> list[int]:
        """Exactly one BOS token at the beginning, or none. Raises RequestError where the model has no such token."""
        bos = self.bos_token_id
        if bos is None and wanted:
            raise RequestError("add_BOS: this model has no BOS token", field="add_BOS")
        start = next((index for index, token_id in enumerate(token_ids) if token_id != bos), len(token_ids))
        return [*([bos] if bos is not None and wanted else []), *token_ids[start:]]

    def token_strings(self, token_ids: Sequence[int]) -> Iterator[str | None]:
        """Each token as the vocabulary has it; None for an id without an entry."""
        return map(self.backend.id_to_token, token_ids)

    def _apply_template(
        self, tokenizer: PreTrainedTokenizerFast, messages: Sequence[dict[str, Any]], options: ChatOptions
    ) -> Any:
        if not self.has_chat_template:
            raise RequestError(
                "this model has no chat template; use /v1/completions, or start the server with --chat-template FILE",
                field="messages",
            )
        try:
            return tokenizer.apply_chat_template(
                list(messages),
                add_generation_prompt=options.add_generation_prompt,
                continue_final_message=options.continue_final_message,
                return_dict=False,
                sanitize_control_tokens=True,
                **options.variables,
            )
        except _TEMPLATE_ERRORS as error:
            raise RequestError(f"the chat template refuses these messages: {error}", field="messages") from error


class _Renderer(PreTrainedTokenizerFast):  # type: ignore[misc]
    """Leaves a rendered conversation as it is: the library renders and tokenises in one call only."""

    def __call__(self, text: str, **_: Any) -> dict[str, str]:
        return {"input_ids": text}


def _renderer_of(tokenizer: PreTrainedTokenizerFast) -> _Renderer:
    renderer: _Renderer = copy.copy(tokenizer)
    renderer.__class__ = _Renderer
    return renderer


def _prefix_of(plain: Tokenizer) -> list[int]:
    """What the tokenizer puts before every text, such as BOS."""
    bare, whole = plain.encode("a", add_special_tokens=False).ids, plain.encode("a").ids
    starts = [start for start in range(len(whole) - len(bare) + 1) if whole[start : start + len(bare)] == bare]
    return whole[: starts[0]] if starts else []


def _plain_text_tokenizer(backend: Tokenizer, chat_template: str | None) -> Tokenizer:
    """A copy of `backend` that finds no control token in the text it is given.

    `encode_special_tokens` makes the library treat special tokens as text; other added tokens that the chat template
    writes are declared special in the copy so that they are covered too. Whitespace tokens stay what they are.
    """
    description = json.loads(backend.to_str())
    for token in description["added_tokens"]:
        content = token["content"]
        if chat_template is not None and not content.isspace() and content in chat_template:
            token["special"] = True
    plain = Tokenizer.from_str(json.dumps(description))
    plain.encode_special_tokens = True
    plain.no_truncation()  # some files carry a training-time length limit; a prompt is never cut silently
    plain.no_padding()
    return plain


def _generation_config_eos(directory: Path) -> tuple[int, ...]:
    file = directory / "generation_config.json"
    if not file.is_file():
        return ()
    try:
        value = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise ConfigurationError(f"{file}: not a JSON object: {error}") from error
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot read the chat template: {error}") from error
