"""Where the tokenizer's files are, and how many token ids they define. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

TOKENIZER_FILE = "tokenizer.json"


class Candidate(NamedTuple):
    """A place to look. origin: who named it, in words."""

    path: Path
    origin: str


@dataclass(frozen=True)
class FoundTokenizer:
    """path: a directory with tokenizer.json, or such a file. num_ids: one more than the largest id it knows.

    from_directory: found beside the weights rather than named by an argument.
    """

    path: Path
    origin: str
    num_ids: int
    from_directory: bool


class TokenizerNotFoundError(Exception):
    """tried: each place, and what was wrong with it."""

    def __init__(self, tried: list[str]) -> None:
        super().__init__("no usable tokenizer found; tried " + "; ".join(tried))
        self.tried = tried


def find_tokenizer(*, typed: str | None, saved: str | None, load: Path, iteration_directory: Path) -> FoundTokenizer:
    """The first usable one of: what was typed (then nothing else), the checkpoint's args, the checkpoint's directories.

    Raises TokenizerNotFoundError saying everything that was tried.
    """
    tried: list[str] = []
    for candidate in _candidates(typed, saved, load, iteration_directory):
        try:
            num_ids = _count_ids(_tokenizer_file(candidate.path))
        except (OSError, ValueError) as error:
            tried.append(f"{candidate.path} ({candidate.origin}: {error})")
            continue
        named = candidate.origin in (_TYPED, _SAVED)
        return FoundTokenizer(candidate.path, candidate.origin, num_ids, from_directory=not named)
    raise TokenizerNotFoundError(tried)


_TYPED = "--tokenizer-model"
_SAVED = "tokenizer_model in the checkpoint's args"
_BESIDE = "beside the weights"


def _candidates(typed: str | None, saved: str | None, load: Path, iteration: Path) -> Iterator[Candidate]:
    if typed is not None:
        yield Candidate(Path(typed), _TYPED)
        return
    if saved is not None:
        yield Candidate(Path(saved), _SAVED)
        if not Path(saved).is_absolute():
            yield Candidate(load / saved, _SAVED)
    places = (load, load / "tokenizer", iteration, iteration / "tokenizer", iteration.parent)
    yield from (Candidate(place, _BESIDE) for place in dict.fromkeys(places))


def _tokenizer_file(path: Path) -> Path:
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.exists():
        raise ValueError(f"no {TOKENIZER_FILE}" if path.is_dir() else "does not exist")
    return file


def _count_ids(file: Path) -> int:
    """Ids are those of the model's vocabulary and of added tokens.

    Source: the serialisation format of huggingface/tokenizers; Unigram keeps a list of pieces, the others a mapping.
    """
    try:
        loaded = json.loads(file.read_bytes())
        vocabulary = loaded["model"]["vocab"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file.name} is not a Hugging Face {TOKENIZER_FILE}") from error
    added = [token["id"] for token in loaded.get("added_tokens") or []]
    return 1 + max([_largest_id(vocabulary), *added], default=-1)


def _largest_id(vocabulary: Any) -> int:
    if isinstance(vocabulary, list):
        return len(vocabulary) - 1
    return max(vocabulary.values(), default=-1)
