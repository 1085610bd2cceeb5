"""Below HTTP's meaning: headers without end, slow clients, TLS; and what the log says of each request."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from server.api import connection
from server.config import ServerConfig
from server.errors import ConfigurationError
from server.launch_uvicorn import tls_context


def exchange(url: str, data: bytes) -> bytes:
    """Send it all; everything that comes back until the server closes."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as client:
        client.sendall(data)
        received = b""
        while piece := client.recv(65536):
            received += piece
    return received


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 21 + b"\r\n", b"21 headers, more than --max-headers 20"),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 5000 + b"\r\n\r\n", b"--max-header-kb allows 4096"),
        (b"GET /" + b"b" * 5000 + b" HTTP/1.1\r\n\r\n", b"--max-header-kb allows 4096"),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 5000, b"--max-header-kb allows 4096"),  # and no end in sight
    ],
)
def test_headers_are_bounded(guarded_server: Any, data: bytes, words: bytes) -> None:
    reply = exchange(guarded_server.url, data)
    assert reply.startswith(b"HTTP/1.1 431 ")
    assert words in reply
    assert httpx.get(f"{guarded_server.url}/health").status_code == 200


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01", b"GET / SMTP\r\n\r\n", b"\r\n" * 5 + b"x\0y z\r\n\r\n"])
def test_what_is_not_http_is_told_so(guarded_server: Any, data: bytes) -> None:
    assert exchange(guarded_server.url, data).startswith(b"HTTP/1.1 400 ")


def test_a_body_may_be_larger_than_the_headers_limit(guarded_server: Any, keys: tuple[str, str, str]) -> None:
    body = {"text": "x" * 20_000}
    reply = httpx.post(f"{guarded_server.url}/generate", json=body, headers={"authorization": f"Bearer {keys[0]}"})
    assert "512" in reply.text or "256" in reply.text  # too many tokens: it was read


async def test_headers_that_never_end_close_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends a byte now and then does not keep its connection for ever."""
    monkeypatch.setattr(connection, "_HEADER_SECONDS", 0.3)
    config = Config(lambda: None, lifespan="off", ws="none", log_config=None)
    protocol = connection.bounded_connection(10, 1000)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, ServerState(), {}), "127.0.0.1", 0)
    async with server:
        for beginning in (b"", b"GET / HTTP/1.1\r\na"):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(beginning)
            assert await asyncio.wait_for(reader.read(), 30) == b""
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize(
    ("pieces", "beginning"),
    [
        ((b"3e8\r\n", b"x" * 1000, b"\r\n0\r\n", b"a: b\r\n", b"\r\n"), b"HTTP/1.1 200 "),
        ((b"0\r\n", b"a: b\r\n" * 11), b"HTTP/1.1 431 "),
        ((b"0\r\n", b"a: " + b"b" * 600, b"b" * 600), b"HTTP/1.1 431 "),  # and no end in sight
    ],
)
async def test_trailers_are_bounded_with_the_headers(pieces: tuple[bytes, ...], beginning: bytes) -> None:
    has_begun = asyncio.Event()

    async def read_whole_body(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive()).get("more_body"):
            has_begun.set()
        if message["type"] == "http.request":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body", "body": b""})

    config = Config(read_whole_body, lifespan="off", ws="none", log_config=None)
    protocol = connection.bounded_connection(10, 1000)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, ServerState(), {}), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n" + pieces[0])
        await asyncio.wait_for(has_begun.wait(), 30)
        for piece in pieces[1:]:
            writer.write(piece)
            await asyncio.sleep(0.01)
        assert (await asyncio.wait_for(reader.read(), 30)).startswith(beginning)
        writer.close()
        await writer.wait_closed()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost and its key, signed by itself."""
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(file), "-out", f"{file}.crt", "-days", "2", *subject]
    subprocess.run(command, check=True, capture_output=True)
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    return file


def test_https_and_a_log_of_json_lines(
    start_stub_server: Callable[..., Any], certificate: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"ssl_certfile": str(certificate), "log_format": "json", "log_level": "debug"}
    with start_stub_server(wait=False, **settings) as server:
        url = server.url.replace("http:", "https:")
        trust = ssl.create_default_context(cafile=f"{certificate}.crt")
        with httpx.Client(base_url=url, verify=trust) as client:
            while not client.get("/health/ready").is_success:
                pass
            client.get("/load", headers={"x-request-id": "mine-1"})
            client.get("/nowhere%0Ainjected?secret=word", headers={"x-request-id": 'x"y'})
            chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
            client.post("/v1/chat/completions", json=chat, headers={"x-request-id": "mine-2"})
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/health")
        server.process.terminate()
        assert server.process.wait(30) == 0
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    by_id = {line["request_id"]: line for line in lines if line["logger"] == "server.access"}
    assert by_id["mine-1"]["path"] == "/load"
    assert by_id["mine-1"]["level"] == "debug"
    assert by_id['x"y']["path"] == "/nowhere%0Ainjected"
    streamed = by_id["mine-2"]
    assert (streamed["status"], streamed["method"], streamed["client"]) == (200, "POST", "127.0.0.1")
    assert streamed["bytes"] > 100
    assert "word" not in str(lines)
    assert {"time", "level", "logger", "message"} <= set(lines[0])


def test_certificates_that_cannot_be_used_are_named(certificate: Path, tmp_path: Path) -> None:
    for settings, words in (
        ({"ssl_certfile": str(tmp_path / "none")}, "none"),
        ({"ssl_certfile": f"{certificate}.crt"}, "ssl-keyfile"),
        ({"ssl_keyfile": str(certificate)}, "need --ssl-certfile"),
        ({"ssl_certfile": str(certificate), "ssl_ca_certs": str(tmp_path / "none")}, "--ssl-ca-certs"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            tls_context(ServerConfig(**settings))
    context = tls_context(ServerConfig(ssl_certfile=str(certificate), ssl_ca_certs=f"{certificate}.crt"))
    assert context is not None
    assert context.verify_mode == ssl.CERT_REQUIRED
