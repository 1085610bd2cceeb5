"""Requests over HTTP, by aiohttp."""

from __future__ import annotations

import aiohttp

from evaluation.transport.wire import RawReply, WireError

CONNECT_TIMEOUT_SECONDS = 30.0


def open_session(api_key: str | None = None) -> aiohttp.ClientSession:
    """A session without limits of its own: concurrency and timeouts are kept per request, from its dispatch on.

    api_key: sent with every request as `Authorization: Bearer` (RFC 6750).
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_SECONDS),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
    )


class HttpWire:
    """Posts to one server."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self.name = server

    async def post(self, path: str, body: bytes, request_id: str) -> RawReply:
        """One request. Raises WireError."""
        headers = {"X-Request-Id": request_id, "Content-Type": "application/json"}
        try:
            async with self._session.post(self.name + path, data=body, headers=headers) as response:
                return RawReply(response.status, response.headers, await response.read())
        except (aiohttp.ClientError, OSError) as error:  # a failed attempt to connect is a TimeoutError, so an OSError
            raise WireError(f"{type(error).__name__}: {error}"[:500]) from None
