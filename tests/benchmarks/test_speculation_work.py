"""`python -m benchmarks.speculation`: prompts that end where their repetition begins, and figures of both engines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.errors import SetupError
from benchmarks.speculation import main
from benchmarks.speculation_workload import repeating_prompts


def characters(text: str) -> list[int]:
    return [ord(character) for character in text]


def test_prompts_are_of_three_kinds_in_turn_and_all_different() -> None:
    texts = ["".join(map(chr, prompt)) for prompt in repeating_prompts(characters, 30)]
    assert len(set(texts)) == 30
    for copy, renaming, edit in zip(texts[::3], texts[1::3], texts[2::3], strict=True):
        assert copy.endswith("once more:\n```python\n")
        head = renaming.splitlines()[2]
        assert head.startswith("def ")
        assert renaming.endswith(f"def new_{head.removeprefix('def ').partition('(')[0]}(")
        first, *others = edit.splitlines()[1:7]
        assert json.loads(edit.splitlines()[-1]) == json.loads(first) | {"status": "checked"}
        assert all(json.loads(other)["status"] == "new" for other in others)


def test_too_many_prompts_are_refused() -> None:
    with pytest.raises(SetupError, match="not 5000"):
        repeating_prompts(characters, 5000)


@pytest.mark.proof
def test_result(tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    short = ("--num-prompts", "9", "--repetitions", "2", "--quiet-wait", "0", "--threads", "1", "--dtype", "fp32")
    assert main(["--load", str(tiny_checkpoint), *short, "--json", str(file)]) == 0
    assert "times faster" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert list(result["work"]) == ["repeating", "W32"]
    for by_concurrency in result["work"].values():
        assert list(by_concurrency) == ["1", "8"]
        for concurrency, figures in by_concurrency.items():
            assert figures["num_equal_sequences"] == figures["num_sequences"] == {"1": 2, "8": 9}[concurrency]
            assert len(figures["rates"]["on"]) == len(figures["rates"]["off"]) == 2
            assert figures["accepted_tokens"] <= figures["draft_tokens"]
    assert result["work"]["W32"]["1"]["accepted_tokens"] > 0
