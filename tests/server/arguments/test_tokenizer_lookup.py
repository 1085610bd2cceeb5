"""The tokenizer is what was typed, else what the checkpoint names, else what lies beside the weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.arguments.tokenizer_lookup import TokenizerNotFoundError, find_tokenizer

MakeTokenizer = Callable[..., Path]


def find(load: Path, typed: Path | str | None = None, saved: Path | str | None = None) -> Any:
    iteration = load / "iter_0000001"
    iteration.mkdir(parents=True, exist_ok=True)
    return find_tokenizer(
        typed=None if typed is None else str(typed),
        saved=None if saved is None else str(saved),
        load=load,
        iteration_directory=iteration,
    )


def test_order(tmp_path: Path, make_tokenizer: MakeTokenizer) -> None:
    typed, saved, load = make_tokenizer(3, "typed"), make_tokenizer(4, "saved"), make_tokenizer(5, "load")
    assert find(load, typed, saved).path == typed
    assert find(load, None, saved).path == saved
    assert find(load).path == load
    assert find(load, saved=tmp_path / "gone").num_ids == 5


@pytest.mark.parametrize("place", [".", "tokenizer", "iter_0000001", "iter_0000001/tokenizer"])
def test_places_beside_the_weights(tmp_path: Path, make_tokenizer: MakeTokenizer, place: str) -> None:
    load = tmp_path / "load"
    make_tokenizer(7, f"load/{place}")
    found = find(load)
    assert (found.path, found.num_ids, found.from_directory) == (load / place, 7, True)


def test_a_file_and_a_path_relative_to_the_checkpoint(tmp_path: Path, make_tokenizer: MakeTokenizer) -> None:
    file = make_tokenizer(7) / "tokenizer.json"
    assert find(tmp_path, file).path == file
    make_tokenizer(9, "load/tok2")
    assert find(tmp_path / "load", saved="tok2").num_ids == 9


def test_what_was_typed_is_not_replaced(tmp_path: Path, make_tokenizer: MakeTokenizer) -> None:
    load = make_tokenizer(5, "load")
    with pytest.raises(TokenizerNotFoundError, match=r"nowhere \(--tokenizer-model: does not exist\)") as error:
        find(load, tmp_path / "nowhere")
    assert len(error.value.tried) == 1


def test_the_error_names_everything_that_was_tried(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerNotFoundError) as error:
        find(tmp_path, saved="/gone/tokenizer.model")
    text = str(error.value)
    assert "/gone/tokenizer.model (tokenizer_model in the checkpoint's args: does not exist)" in text
    assert f"{tmp_path} (beside the weights: no tokenizer.json)" in text
    assert "tokenizer.json is not a Hugging Face tokenizer.json" in text
    assert "iter_0000001" in text


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": []}, 2),
        ({"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 9}]}, 10),
        ({"model": {"vocab": [["a", 0.0], ["b", -1.0]]}}, 2),
        ({"model": {"vocab": {}}, "added_tokens": None}, 0),
    ],
)
def test_counting_ids(tmp_path: Path, content: Any, ids: int) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert find(tmp_path).num_ids == ids


def test_ids_are_the_tokenizers_librarys(tmp_path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    tokenizer.add_tokens([AddedToken("<x>"), AddedToken("<y>")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert find(tmp_path).num_ids == tokenizer.get_vocab_size() == 5


def test_a_missing_tokenizer_does_not_hide_the_arguments(plant: Any, resolve: Any) -> None:
    load = plant(tokenizer_model="/gone")
    shutil.move(load / "tokenizer.json", load / "elsewhere.json")
    resolved = resolve(load)
    assert resolved.status == 0
    assert "/gone (tokenizer_model in the checkpoint's args" in resolved["tokenizer_model"]["note"]


def test_sources_of_the_resolved_path(plant: Any, resolve: Any, make_tokenizer: MakeTokenizer) -> None:
    saved, typed = str(make_tokenizer(100, "saved")), str(make_tokenizer(101, "typed"))
    load = plant(tokenizer_model=saved)
    assert resolve(load).value_and_source("tokenizer_model") == (saved, "checkpoint")
    assert resolve(load, "--tokenizer-model", typed).value_and_source("tokenizer_model") == (typed, "command_line")
    beside = plant("beside", tokenizer_model="/gone")
    assert resolve(beside).value_and_source("tokenizer_model") == (str(beside), "derived")
    assert resolve(beside)["tokenizer_model"]["checkpoint"] == "/gone"
    assert resolve(beside).value_and_source("vocab_size") == (120, "derived")
