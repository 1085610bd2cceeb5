"""What carries requests: a way to post a body and get a reply, and a gate before it. HTTP, or offline mode's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class RawReply(NamedTuple):
    """A reply as it came. headers: at least `Retry-After`, where it was sent."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class WireError(Exception):
    """No reply came: the connection failed before it was whole."""


class Wire(Protocol):
    """name: of whom is asked, in messages."""

    @property
    def name(self) -> str: ...

    async def post(self, path: str, body: bytes, request_id: str) -> RawReply:
        """Send one request and wait for its whole reply. Raises WireError."""


class Gate(Protocol):
    """Open while whoever is asked is believed ready."""

    async def wait(self) -> None:
        """Return once the gate is open; RunAbortedError when it never will be."""

    def suspect(self) -> None:
        """Something went wrong: keep everybody waiting until it is known to be well again."""
