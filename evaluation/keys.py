"""Identity of a request: two requests share a key exactly when the same model is asked the same thing the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from evaluation.canonical import sha256_json


@dataclass(frozen=True, kw_only=True)
class GenerationParameters:
    """Sampling parameters of every request of a run. temperature: 0 is greedy. top_p: in (0, 1], 1 is off.
    stop: strings that end an answer."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON; `stop` only where there is one."""
        values = {**asdict(self), "stop": list(self.stop)}
        return values if self.stop else {name: value for name, value in values.items() if name != "stop"}


class Identified(Protocol):
    """Whatever can be asked: it knows what its answer depends on. endpoint: "chat" or "generate"."""

    @property
    def kind(self) -> str: ...

    @property
    def endpoint(self) -> str: ...

    def content_with_digests(self) -> dict[str, Any]: ...


def request_key(
    *,
    item_id: str,
    row: int,
    prompt: Identified | None,
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
            "kind": prompt.kind if prompt else "generate_until",
            "endpoint": prompt.endpoint if prompt else None,
            "prompt": prompt.content_with_digests() if prompt else None,
            "model": model_identity,
            "parameters": dict(parameters),
            "sample": sample,
        }
    )
