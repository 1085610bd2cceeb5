"""What a wrong body costs and says: few errors, whatever its size, and paths that are the client's."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from server.api.dialect_megatron import LegacyBody
from server.api.openai_protocol import ChatBody, CompletionBody
from server.api.protocol import GenerateBody, RequestBody
from server.api.request_body import check_body, check_body_leniently
from server.errors import RequestError

MANY = 1000
MESSAGE = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("model", "fields", "path"),
    [
        (GenerateBody, {"input_ids": ["a"] * MANY}, "input_ids[0]"),
        (GenerateBody, {"input_ids": [[1], *["a"] * MANY]}, "input_ids[1]"),
        (GenerateBody, {"input_ids": [["a"]] * MANY}, "input_ids[0][0]"),
        (GenerateBody, {"text": ["a", *[1] * MANY]}, "text[1]"),
        (GenerateBody, {"sampling_params": [1] * MANY}, "sampling_params[0]"),
        (GenerateBody, {"sampling_params": {"stop_token_ids": ["a"] * MANY}}, "sampling_params.stop_token_ids[0]"),
        (GenerateBody, {"sampling_params": {"logit_bias": dict.fromkeys(map(str, range(MANY)), "a")}}, None),
        (CompletionBody, {"prompt": ["a", *[1] * MANY]}, "prompt[1]"),
        (CompletionBody, {"prompt": [1, *["a"] * MANY]}, "prompt[1]"),
        (CompletionBody, {"prompt": [["a"]] * MANY}, "prompt[0][0]"),
        (CompletionBody, {"guided_choice": [1] * MANY}, "guided_choice[0]"),
        (ChatBody, {"messages": [1] * MANY}, "messages[0]"),
        (ChatBody, {"messages": [{"role": "user", "content": [1] * MANY}]}, "messages[0].content[0]"),
        (ChatBody, {"messages": [{**MESSAGE, "tool_calls": [1] * MANY}]}, "messages[0].tool_calls[0]"),
        (ChatBody, {"messages": [MESSAGE], "tools": [1] * MANY}, "tools[0]"),
        (LegacyBody, {"prompts": [1] * MANY}, "prompts[0]"),
    ],
)
def test_a_collection_fails_at_its_first_wrong_item(
    model: type[RequestBody], fields: dict[str, Any], path: str | None
) -> None:
    with pytest.raises(RequestError) as refusal:
        check_body_leniently(fields, model)
    assert path is None or refusal.value.field == path
    cause = refusal.value.__cause__
    assert isinstance(cause, ValidationError)
    assert cause.error_count() == 1


def test_unknown_fields_are_no_errors_of_pydantics() -> None:
    """It would keep one for each."""
    with pytest.raises(RequestError, match=r"field0 is not .*; field1 is not .*; field2 is not") as refusal:
        check_body({"text": "x"} | {f"field{index}": 1 for index in range(MANY)}, GenerateBody)
    assert refusal.value.__cause__ is None
    assert "field3" not in refusal.value.message


def test_an_unknown_field_may_be_named_like_the_member_of_a_union() -> None:
    choice = {"type": "function", "function": {"name": "f"}, "<one>": 1}
    content = [{"type": "text", "text": "hi", "<list>": 1}]
    fields = {"messages": [{"role": "user", "content": content}, MESSAGE | {"name_": 1}], "tool_choice": choice}
    body, ignored = check_body_leniently(fields, ChatBody)
    assert ignored == ["messages[0].content[0].<list>", "messages[1].name_", "tool_choice.<one>"]
    assert body.messages is not None
    assert all(not message.model_extra for message in body.messages)


def test_names_of_any_length_make_short_messages() -> None:
    long = "x" * 100_000
    for fields in ({long: 1}, {"sampling_params": {"logit_bias": {long: "a"}}}, {"sampling_params": {long: 1}}):
        with pytest.raises(RequestError) as refusal:
            check_body({"text": "x", **fields}, GenerateBody)
        assert len(refusal.value.message) < 300
        assert len(refusal.value.field or "") < 200
