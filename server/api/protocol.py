"""What a body may hold: the base of all request models, and the canonical /generate.

Types only; ranges are the frontend's. A field that is null counts as not given. An unknown field is an error.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.api.json_unions import IdsOrBatch, LogitBias, OneOrList, TextOrList, TokenIds


class RequestBody(BaseModel):
    """Strict: no number in a string, no float for an integer, no NaN, no unknown field."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class SamplingFields(RequestBody):
    """The sampling parameters that /generate calls alike in SGLang's and in vLLM's dialect."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop: TextOrList[str] | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: LogitBias | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None


class SamplingBody(SamplingFields):
    """`sampling_params` of /generate. max_tokens is another name for max_new_tokens.

    json_schema, regex, grammar: what the text must match; a schema as an object or as text, a grammar as Lark or GBNF.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    json_schema: Any = None
    regex: str | None = None
    grammar: str | None = None


class GenerateBody(RequestBody):
    """POST /generate."""

    text: TextOrList[str] | None = None
    input_ids: IdsOrBatch | None = None
    image_data: Any = None
    sampling_params: OneOrList[SamplingBody] | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    rid: TextOrList[str] | None = Field(
        None,
        description="A name, for /abort_request. A batch's one name becomes rid_0, rid_1, ... of its prompts.",
    )
    priority: int | None = None
    stream: bool | None = None
    stream_mode: Literal["cumulative", "delta"] | None = None


class AbortBody(RequestBody):
    """POST /abort_request. rid: of one prompt, or the one name that a batch was given."""

    rid: Annotated[str, Field(min_length=1)]
