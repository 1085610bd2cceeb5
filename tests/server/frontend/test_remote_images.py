"""Fetching images by address, on loopback: who answers for a name, and which addresses pass, is injected."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.test_utils import TestServer

from server.errors import RequestError
from server.frontend.remote_images import RemoteImages

PICTURE = bytes(range(256)) * 8


class Names(AbstractResolver):
    """Answers from a table, one address list per question, the last one for ever; counts the questions."""

    def __init__(self, table: dict[str, list[list[str]]]) -> None:
        self.table = table
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        self.asked.append(host)
        answers = self.table[host]
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0)
            for address in addresses
        ]

    async def close(self) -> None:
        pass


class Site:
    """A web server on loopback, under the names cdn.example and other.example."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.headers: dict[str, str] = {}
        self.port = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.num_requests += 1
        self.headers = dict(request.headers)
        match request.path:
            case "/picture":
                return web.Response(body=PICTURE)
            case "/large":
                reply = web.StreamResponse()
                await reply.prepare(request)
                for _ in range(100):
                    await reply.write(b"x" * 10_000)
                return reply
            case "/slow":
                await asyncio.sleep(30)
            case "/gzip":
                return web.Response(body=PICTURE, headers={"content-encoding": "gzip"})
            case "/to":
                raise web.HTTPFound(request.query["url"])
            case "/for-ever":
                raise web.HTTPFound("/for-ever")
        return web.Response(status=404)

    def url(self, path: str, host: str = "cdn.example") -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def fetching(
    names: Names | None = None, rule: Callable[[str], bool] = lambda address: address == "127.0.0.1", **options: Any
) -> AsyncIterator[tuple[RemoteImages, Site, Names]]:
    site = Site()
    app = web.Application()
    app.router.add_get("/{path:.*}", site.answer)
    names = names or Names({"cdn.example": [["127.0.0.1"]], "other.example": [["127.0.0.1"]]})
    async with TestServer(app) as server:
        assert server.port is not None
        site.port = server.port
        hosts = ["CDN.example", "*.wide.example", "127.0.0.1", "127.0.0.2"]
        settings: dict[str, Any] = {"hosts": hosts, "max_bytes": 20_000, "timeout": 5.0} | options
        images = RemoteImages(**settings, rule=rule, resolver=names)
        try:
            yield images, site, names
        finally:
            await images.close()


async def refusal(images: RemoteImages, url: str) -> str:
    with pytest.raises(RequestError) as caught:
        await images.fetch(url, "image_data")
    assert (caught.value.status, caught.value.field) == (400, "image_data")
    return caught.value.message


async def test_an_allowed_host_is_asked_once_by_name_and_connected_by_address() -> None:
    async with fetching() as (images, site, names):
        assert await images.fetch(site.url("/picture"), "image_data") == PICTURE
        assert names.asked == ["cdn.example"]
        assert site.headers["Host"] == f"cdn.example:{site.port}"
        assert "Authorization" not in site.headers


async def test_other_hosts_schemes_and_credentials_are_refused_before_anything_is_sent() -> None:
    async with fetching() as (images, site, names):
        assert "not among the hosts" in await refusal(images, site.url("/picture", "other.example"))
        assert "not among the hosts" in await refusal(images, site.url("/picture", "cdn.example.evil.example"))
        assert "only http" in await refusal(images, "ftp://cdn.example/x")
        assert "name or password" in await refusal(images, f"http://u:p@cdn.example:{site.port}/picture")
        assert (site.num_requests, names.asked) == (0, [])


async def test_a_host_with_one_forbidden_address_is_refused() -> None:
    names = Names({"cdn.example": [["127.0.0.1", "10.0.0.1"]]})
    async with fetching(names) as (images, site, _):
        assert "not public" in await refusal(images, site.url("/picture"))
        assert site.num_requests == 0


async def test_a_second_answer_of_the_name_server_changes_nothing() -> None:
    """The first answer is checked, and what was checked is connected to: one question for one connection."""
    names = Names({"cdn.example": [["127.0.0.1"], ["10.0.0.1"]]})
    async with fetching(names) as (images, site, _):
        assert await images.fetch(site.url("/picture"), "image_data") == PICTURE
        assert names.asked == ["cdn.example"]
        assert "not public" in await refusal(images, site.url("/picture"))


async def test_literal_addresses_obey_the_rule_too() -> None:
    async with fetching() as (images, site, names):
        assert await images.fetch(site.url("/picture", "127.0.0.1"), "image_data") == PICTURE
        assert "not a public address" in await refusal(images, site.url("/picture", "127.0.0.2"))
        assert names.asked == []


async def test_with_the_real_rule_loopback_cannot_be_reached_in_any_spelling() -> None:
    hosts = ["127.0.0.1", "127.1", "0x7f.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "localhost"]
    allowed = [host.strip("[]") for host in hosts]
    async with fetching() as (_, site, _names):
        images = RemoteImages(allowed, 1000, 5.0)
        try:
            for host in hosts:
                await refusal(images, site.url("/picture", host))
        finally:
            await images.close()
        assert site.num_requests == 0


async def test_every_hop_of_a_redirect_is_checked() -> None:
    async with fetching() as (images, site, _):
        assert await images.fetch(site.url(f"/to?url={site.url('/picture')}"), "image_data") == PICTURE
        for target in (site.url("/picture", "other.example"), site.url("/picture", "127.0.0.2"), "file:///etc/passwd"):
            before = site.num_requests
            await refusal(images, site.url(f"/to?url={target}"))
            assert site.num_requests == before + 1
        assert "redirects" in await refusal(images, site.url("/for-ever"))


async def test_size_and_time_are_bounded() -> None:
    async with fetching() as (images, site, _):
        assert "larger than 20000 bytes" in await refusal(images, site.url("/large"))
    async with fetching(timeout=0.2) as (images, site, _):
        assert "--remote-image-timeout" in await refusal(images, site.url("/slow"))


async def test_what_else_a_host_can_do_wrong() -> None:
    async with fetching() as (images, site, _):
        assert "status 404" in await refusal(images, site.url("/nothing"))
        assert "compressed" in await refusal(images, site.url("/gzip"))
        assert "cannot be fetched" in await refusal(images, "http://cdn.example:1/")


@pytest.mark.parametrize(
    ("host", "fits"), [("wide.example", True), ("a.b.wide.example", True), ("nowide.example", False)]
)
async def test_a_wildcard_is_a_name_and_all_below(host: str, fits: bool) -> None:
    names = Names({host: [["127.0.0.1"]]})
    async with fetching(names) as (images, site, _):
        if fits:
            assert await images.fetch(site.url("/picture", host), "image_data") == PICTURE
        else:
            assert "not among" in await refusal(images, site.url("/picture", host))
