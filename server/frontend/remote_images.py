"""Fetches images that a request names by address: from allowed hosts at public addresses, in bounded time and size.

Every connection, so every hop of a redirect too, resolves its host once, checks all that comes back, and connects to
what was checked: between check and use no second answer of a name server can come in (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from server.errors import RequestError
from server.frontend.address_rule import is_public_address
from server.frontend.field_checks import shown

_MOST_REDIRECTS = 3
_MOST_CONNECTIONS = 16
_PIECE_BYTES = 1 << 16
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

AddressRule = Callable[[str], bool]


class _RefusedError(Exception):
    """Why an image is not fetched, for the client."""


class CheckedResolver(AbstractResolver):
    """Resolves through `inner`, and refuses a host of which any address breaks the rule."""

    def __init__(self, inner: AbstractResolver, rule: AddressRule) -> None:
        self._inner = inner
        self._rule = rule

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        results = await self._inner.resolve(host, port, family)
        if not results or not all(self._rule(result["host"]) for result in results):
            raise _RefusedError(f"{host} has an address that is not public")
        return results

    async def close(self) -> None:
        await self._inner.close()


class RemoteImages:
    """hosts: names, or `*.name` for it and all below. max_bytes, timeout: of one image, redirects included.

    rule and resolver are the system's own unless given. Make and close it on the running event loop.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        max_bytes: int,
        timeout: float,
        *,
        rule: AddressRule = is_public_address,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._hosts = [host.lower().rstrip(".") for host in hosts]
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._rule = rule
        checked = CheckedResolver(resolver or aiohttp.ThreadedResolver(), rule)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=checked, use_dns_cache=False, force_close=True, limit=_MOST_CONNECTIONS
            ),
            trust_env=False,  # a proxy would resolve, and connect, for itself
            auto_decompress=False,  # a small body must not unfold into a large one
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"accept": "image/*", "accept-encoding": "identity"},
        )

    async def fetch(self, address: str, field: str) -> bytes:
        """The encoded image. Raises RequestError naming `field`."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._follow(address)
        except TimeoutError:
            reason = f"did not arrive within {self._timeout:g} s (--remote-image-timeout)"
        except _RefusedError as error:
            reason = str(error)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            cause = error.__cause__ if isinstance(error.__cause__, _RefusedError) else None
            reason = str(cause) if cause else f"cannot be fetched ({type(error).__name__})"
        raise RequestError(f"{field}: the image at {shown(address)}: {reason}", field=field)

    async def close(self) -> None:
        """End all connections."""
        await self._session.close()

    async def _follow(self, address: str) -> bytes:
        url = URL(address)
        for _ in range(_MOST_REDIRECTS + 1):
            self._check(url)
            async with self._session.get(url, allow_redirects=False) as reply:
                if reply.status not in _REDIRECTS:
                    return await self._read(reply)
                url = url.join(URL(reply.headers.get("location", "")))
        raise _RefusedError(f"more than {_MOST_REDIRECTS} redirects")

    def _check(self, url: URL) -> None:
        """Everything but what the resolver checks; it is not asked about a literal address."""
        host = (url.host or "").lower().rstrip(".")
        if url.scheme not in ("http", "https") or not host:
            raise _RefusedError("only http and https addresses are fetched")
        if url.user is not None or url.password is not None:
            raise _RefusedError("the address holds a name or password")
        if not any(_fits(host, allowed) for allowed in self._hosts):
            raise _RefusedError(f"{host} is not among the hosts of --allow-remote-images")
        if _is_literal(host) and not self._rule(host):
            raise _RefusedError(f"{host} is not a public address")

    async def _read(self, reply: aiohttp.ClientResponse) -> bytes:
        if reply.status != 200:
            raise _RefusedError(f"the host answered with status {reply.status}")
        if reply.headers.get("content-encoding", "identity").lower() != "identity":
            raise _RefusedError("the host sent it compressed, which was not asked for")
        pieces = bytearray()
        async for piece in reply.content.iter_chunked(_PIECE_BYTES):
            pieces += piece
            if len(pieces) > self._max_bytes:
                raise _RefusedError(f"is larger than {self._max_bytes} bytes (--max-image-mb)")
        return bytes(pieces)


def _fits(host: str, allowed: str) -> bool:
    if allowed.startswith("*."):
        return host == allowed[2:] or host.endswith(allowed[1:])
    return host == allowed


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
