"""Bodies of /v1/completions and /v1/chat/completions: OpenAI's fields, and the sampling parameters they lack."""

from __future__ import annotations

from typing import Any, Literal

from server.api.json_unions import Prompt, TextOrList, TokenIds
from server.api.protocol import RequestBody

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


class ContentPart(RequestBody):
    """One part of a message's content; only text is understood so far."""

    type: Literal["text"]
    text: str


class ChatMessage(RequestBody):
    """role: whatever the chat template knows."""

    role: str
    content: TextOrList[ContentPart] | None = None
    name: str | None = None

    def for_template(self) -> dict[str, Any]:
        """As chat templates of text models expect it: content is one string."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {"role": self.role, "content": text} | ({"name": self.name} if self.name else {})


class ChatBody(OpenAISampling):
    """POST /v1/chat/completions. max_completion_tokens is the newer name of max_tokens."""

    messages: list[ChatMessage] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
