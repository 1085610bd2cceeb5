"""Identity of a request: two requests share a key exactly when the same model is asked the same thing the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from evaluation.canonical import sha256_json
from evaluation.prompts import RenderedPrompt


@dataclass(frozen=True, kw_only=True)
class GenerationParameters:
    """Sampling parameters of every request of a run. temperature: 0 is greedy. top_p: in (0, 1], 1 is off."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def request_key(
    *,
    item_id: str,
    row: int,
    prompt: RenderedPrompt | None,
    model_identity: str,
    parameters: Mapping[str, Any],
    sample: int = 0,
) -> str:
    """Hexadecimal SHA-256 over all that the answer depends on.

    Images enter by the digest of their bytes. URL, timeouts, concurrency and scorer are left out: they do not change
    the answer. `prompt` is None for a row that cannot be asked.
    """
    return sha256_json(
        {
            "item_id": item_id,
            "row": row,
            "kind": "generate_until",
            "endpoint": prompt.endpoint if prompt else None,
            "prompt": prompt.content_with_digests() if prompt else None,
            "model": model_identity,
            "parameters": dict(parameters),
            "sample": sample,
        }
    )
