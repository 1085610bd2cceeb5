"""What a run directory belongs to: the model, the data, the prompts and the sampling parameters of its answers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from evaluation.errors import RunDirectoryError
from evaluation.request_types.names import RequestType

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents of manifest.json.

    dataset: {path, sha256}. prompt: {template}, None for the built-in prompts. parameters: sampling parameters, and the
    type of the requests where it is another than generate_until.
    model: {identity, name, kind, checkpoint, ...}. server: what /server_info answered. rows: {digest, item_ids} of the
    selected rows in dataset/. thinking: how answers were last taken from the raw texts, see
    `thinking.ThinkingSplit`. created_at: seconds since the epoch.
    """

    dataset: dict[str, Any]
    prompt: dict[str, Any]
    parameters: dict[str, Any]
    model: dict[str, Any]
    server: dict[str, Any]
    rows: dict[str, Any]
    created_at: float
    thinking: dict[str, Any] = field(default_factory=dict)
    version: int = FORMAT_VERSION

    @property
    def request_type(self) -> RequestType:
        return RequestType(self.parameters.get("request_type", RequestType.GENERATE_UNTIL))

    def differences(self, other: Self) -> list[str]:
        """Why answers of `other` cannot be mixed with this run's, one line each; paths and times never are a reason."""
        pairs = [
            ("data file", self.dataset["sha256"], other.dataset["sha256"], self.dataset["path"], other.dataset["path"]),
            ("prompt template", self.prompt, other.prompt, "another text", "this text"),
            ("model", self.model["identity"], other.model["identity"], _describe(self), _describe(other)),
        ]
        lines = [f"{name}: the run has {old}, now it is {new}" for name, a, b, old, new in pairs if a != b]
        for name in sorted({*self.parameters, *other.parameters}):
            old, new = self.parameters.get(name), other.parameters.get(name)
            if old != new:
                lines.append(f"{name}: the run has {old}, now it is {new}")
        return lines

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode() + b"\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        """RunDirectoryError when the file is missing, damaged or of another version."""
        try:
            values = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise RunDirectoryError(f"{path.parent} is not a run directory: it has no {path.name}") from None
        except (OSError, ValueError) as error:
            raise RunDirectoryError(f"{path}: cannot be read: {error}") from None
        if not isinstance(values, dict) or values.get("version") != FORMAT_VERSION:
            raise RunDirectoryError(f"{path}: not a manifest of version {FORMAT_VERSION}")
        try:
            return cls(**values)
        except TypeError as error:
            raise RunDirectoryError(f"{path}: damaged: {error}") from None


def _describe(manifest: Manifest) -> str:
    checkpoint = manifest.model.get("checkpoint") or {}
    name = manifest.model.get("name") or "a model"
    return f"{name} ({checkpoint.get('path')}, iteration {checkpoint.get('iteration')})"
