"""Values in messages: as Python writes them, and no longer than a message may be."""

from __future__ import annotations

from typing import Any

import pytest

from server.frontend.field_checks import shown


@pytest.mark.parametrize(
    "value", [None, True, -1.5, "it's", 'a"b', [], {}, [1, "two", [None]], {"a": {"b": [0.5, {}]}, "c": "d"}]
)
def test_short_values_are_whole(value: Any) -> None:
    assert shown(value) == repr(value)


@pytest.mark.parametrize("value", ["x" * 61, list(range(100)), {"key" * 30: 1}, [["x" * 1000]] * 9])
def test_long_values_are_cut(value: Any) -> None:
    assert shown(value) == repr(value)[:60] + "..."


class Unwritten:
    def __repr__(self) -> str:
        raise AssertionError("written out, to be cut off")


def test_what_is_cut_off_is_never_written_out() -> None:
    assert shown(["x" * 1000, Unwritten()]).endswith("...")
    assert shown({"x" * 1000: Unwritten()}).endswith("...")


def test_a_number_too_long_for_the_interpreter() -> None:
    assert shown([10**5000]) == "a very long number"
