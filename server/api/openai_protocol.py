"""Bodies of /v1/completions and /v1/chat/completions: OpenAI's fields, and the sampling parameters they lack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from server.api.json_unions import Prompt, TextOrList, TokenIds
from server.api.protocol import RequestBody
from server.errors import RequestError

# Fields of OpenAI's and other servers' requests that this server cannot honour. A value that asks for nothing (null,
# false, an empty list or object) is let through, because clients send such defaults unasked.
UNSUPPORTED_COMPLETION_FIELDS = frozenset({"best_of", "suffix", "prompt_embeds", "response_format"})
UNSUPPORTED_CHAT_FIELDS = frozenset(
    {
        "add_generation_prompt",
        "audio",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "documents",
        "function_call",
        "functions",
        "guided_json",
        "guided_regex",
        "modalities",
        "parallel_tool_calls",
        "prediction",
        "reasoning_effort",
        "response_format",
        "tool_choice",
        "tools",
        "web_search_options",
    }
)
# Fields that ask for bookkeeping on the provider's side and change nothing about the answer.
BOOKKEEPING_FIELDS = frozenset({"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"})


class StreamOptions(RequestBody):
    """include_usage: one more event at the end, with the token counts."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class OpenAISampling(RequestBody):
    """What both endpoints share."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: TextOrList[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Beyond OpenAI, under the names that vLLM and SGLang clients send.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    priority: int | None = None


class CompletionBody(OpenAISampling):
    """POST /v1/completions. logprobs: how many alternatives per token."""

    prompt: Prompt | None = None
    echo: bool | None = None
    logprobs: int | None = None


class ImageUrl(RequestBody):
    """url: a data URL. detail: accepted and without effect, the model's own arguments say how images are cut."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ContentPart(RequestBody):
    """One part of a message's content: text, or an image."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageUrl | None = None

    def is_image(self) -> bool:
        return self.type == "image_url"


class ChatMessage(RequestBody):
    """role: whatever the chat template knows."""

    role: str
    content: TextOrList[ContentPart] | None = None
    name: str | None = None

    def parts(self) -> list[ContentPart]:
        """The content as parts, whichever way it was written."""
        content = self.content or ""
        return [ContentPart(type="text", text=content)] if isinstance(content, str) else content

    def images(self, field: str) -> list[str]:
        """Data URLs of its images, in order. Raises RequestError, naming the place, for a part without content."""
        urls = []
        for index, part in enumerate(self.parts()):
            if (part.image_url if part.is_image() else part.text) is None:
                where = f"{field}.content[{index}]"
                raise RequestError(f"{where} is of type {part.type!r} and needs {part.type}", field=where)
            if part.is_image() and part.image_url is not None:
                urls.append(part.image_url.url)
        return urls

    def for_template(self, marks: Iterator[str]) -> dict[str, Any]:
        """As chat templates expect it: content is one string, in which a mark stands for each image."""
        text = "".join(next(marks) if part.is_image() else part.text or "" for part in self.parts())
        return {"role": self.role, "content": text} | ({"name": self.name} if self.name else {})


class ChatBody(OpenAISampling):
    """POST /v1/chat/completions. max_completion_tokens is the newer name of max_tokens."""

    messages: list[ChatMessage] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
