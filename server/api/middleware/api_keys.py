"""Who may use which path: clients' keys, administrators' keys, and what needs none."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, Self

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from server.api.error_replies import error_response
from server.config import ServerConfig
from server.errors import ConfigurationError, RequestError

ADMIN_PATHS = frozenset({"/flush_cache", "/pause", "/resume", "/start_profile", "/stop_profile"})
OPEN_PATHS = frozenset({"/", "/health", "/health/ready", "/ping"})
"""Answered without a key, but then without detail. `/` is the page that asks for the key, which tells nothing."""

Role = Literal["stranger", "client", "admin"]
"""What routes find in `request.scope["role"]`."""

_SHORTEST_KEY = 8


class ApiKeys:
    """Digests of the keys: comparing those takes equally long whatever was sent."""

    def __init__(self, client_keys: Iterable[str], admin_keys: Iterable[str]) -> None:
        self._client_digests = [_digest(key) for key in client_keys]
        self._admin_digests = [_digest(key) for key in admin_keys]

    @classmethod
    def from_config(cls, config: ServerConfig) -> Self:
        """Raises ConfigurationError for keys that cannot be read, or protect nothing."""
        return cls(
            _all_keys("--api-key", config.api_key, config.api_key_file),
            _all_keys("--admin-api-key", config.admin_api_key, config.admin_api_key_file),
        )

    @property
    def has_admin(self) -> bool:
        return bool(self._admin_digests)

    def role_of(self, key: str) -> Role:
        """An administrator's key is good for everything."""
        digest = _digest(key)
        if _is_among(digest, self._admin_digests):
            return "admin"
        if not self._client_digests or _is_among(digest, self._client_digests):
            return "client"
        return "stranger"


class RequireKeys:
    """Answers 401 and 403; sets the role for routes that show more to who has a key."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "there are no websockets and no lifespan"
        role = self._keys.role_of(_bearer_key(Request(scope)))
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        refusal = self._refusal(role, path)
        if refusal is not None:
            await error_response(refusal, path)(scope, receive, send)
            return
        scope["role"] = role
        await self._app(scope, receive, send)

    def _refusal(self, role: Role, path: str) -> RequestError | None:
        if path in OPEN_PATHS or role == "admin":
            return None
        if role == "stranger":
            return RequestError("a key is needed: send it as `Authorization: Bearer KEY`", status=401)
        if path not in ADMIN_PATHS:
            return None
        if self._keys.has_admin:
            return RequestError(f"{path} needs an administrator's key", status=403)
        return RequestError(f"{path} is off: the server was started without --admin-api-key", status=403)


def _bearer_key(request: Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _is_among(digest: bytes, known: Sequence[bytes]) -> bool:
    found = False
    for other in known:  # all of them, whichever fits
        found |= hmac.compare_digest(digest, other)
    return found


def _all_keys(flag: str, given: Sequence[str] | None, file: str | None) -> list[str]:
    keys = list(given or ())
    if file is not None:
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{flag}-file {file}: cannot be read: {error}") from error
        in_file = [line.strip() for line in lines if line.strip()]
        if not in_file:
            raise ConfigurationError(f"{flag}-file {file}: holds no key")
        keys += in_file
    if any(len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key for key in keys):
        raise ConfigurationError(f"{flag}: a key has {_SHORTEST_KEY} or more ASCII characters and no spaces")
    return keys
