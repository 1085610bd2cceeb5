"""Bodies of /v1/completions and /v1/chat/completions: OpenAI's fields, and the sampling parameters they lack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from server.api.json_unions import LogitBias, Prompt, TextOrList, TokenIds
from server.api.protocol import RequestBody
from server.api.response_format import FormatFields
from server.api.tool_fields import MessageToolCall, Tool, ToolChoice
from server.errors import RequestError

# Fields of OpenAI's and other servers' requests that this server cannot honour. A value that asks for nothing (null,
# false, an empty list or object) is let through, because clients send such defaults unasked.
_UNSUPPORTED_FIELDS = frozenset(
    {
        "allowed_token_ids",
        "bad_words",
        "best_of",
        "custom_logit_processor",
        "guided_decoding_backend",
        "guided_whitespace_pattern",
        "kv_transfer_params",
        "length_penalty",
        "logits_processors",
        "lora_path",
        "multi_modal_data",
        "return_hidden_states",
        "skip_prompt_log_probs",
        "spaces_between_special_tokens",
        "truncate_prompt_tokens",
        "typical_p",
        "use_beam_search",
    }
)
UNSUPPORTED_COMPLETION_FIELDS = _UNSUPPORTED_FIELDS | {"suffix", "prompt_embeds"}
UNSUPPORTED_CHAT_FIELDS = _UNSUPPORTED_FIELDS | frozenset(
    {
        "audio",
        "chat_template",
        "documents",
        "function_call",
        "functions",
        "modalities",
        "prediction",
        "reasoning_effort",
        "web_search_options",
    }
)
# Values of unsupported fields that change nothing. Log-probabilities of a prompt come by prompt_logprobs, or by echo.
NEUTRAL_VALUES = {
    "best_of": 1,
    "length_penalty": 1,
    "skip_prompt_log_probs": True,
    "spaces_between_special_tokens": True,
    "typical_p": 1,
}
# Fields that ask for bookkeeping on the provider's side and change nothing about the answer.
BOOKKEEPING_FIELDS = frozenset({"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"})


class StreamOptions(RequestBody):
    """include_usage: one more event at the end, with the token counts."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class OpenAISampling(FormatFields):
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
    logit_bias: LogitBias | None = None
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
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    # Beyond OpenAI, under the names that Megatron's clients send.
    add_BOS: bool | None = None
    return_tokenized_data: bool | None = None
    streaming_interval: Annotated[int, Field(ge=1)] | None = None


class CompletionBody(OpenAISampling):
    """POST /v1/completions. logprobs: how many alternatives per token."""

    prompt: Prompt | None = None
    echo: bool | None = None
    logprobs: int | None = None
    add_special_tokens: bool | None = None


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
    tool_calls: Annotated[list[MessageToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    # What an answer was made of, so that it is not tokenised anew (see `retokenization`).
    prompt_token_ids: TokenIds | None = None
    generation_token_ids: TokenIds | None = None

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
        given = {"name": self.name, "tool_call_id": self.tool_call_id, "reasoning_content": self.reasoning_content}
        calls = {"tool_calls": [call.for_template() for call in self.tool_calls]} if self.tool_calls else {}
        return {"role": self.role, "content": text} | {name: value for name, value in given.items() if value} | calls


class ChatBody(OpenAISampling):
    """POST /v1/chat/completions. max_completion_tokens is the newer name of max_tokens."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    prevent_retokenization: bool | None = None
    return_raw_text: bool | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
