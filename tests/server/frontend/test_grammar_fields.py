"""Grammars from fields: what is no text never gets past them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.errors import RequestError
from server.frontend.grammar_fields import json_schema_grammar, regex_grammar, text_grammar
from server.request import Grammar


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (json_schema_grammar, r'{"const": "\ud800"}'),
        (json_schema_grammar, r'{"properties": {"\udc00": {}}}'),
        (regex_grammar, "a\ud800"),
        (text_grammar, 'start: "\udfff"'),
    ],
)
def test_half_a_surrogate_pair_is_refused(make: Callable[[str, str], Grammar], text: str) -> None:
    with pytest.raises(RequestError, match="half a surrogate pair") as caught:
        make(text, "the_field")
    assert (caught.value.status, caught.value.field) == (400, "the_field")


def test_a_whole_pair_is_a_character() -> None:
    assert "\U0001f600" in json_schema_grammar(r'{"const": "\ud83d\ude00"}', "json_schema").text
