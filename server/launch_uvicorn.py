"""uvicorn, set up from our arguments: TLS, limits of a connection, no log and no signals of its own."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from server.api.app import create_app
from server.api.connection import bounded_connection
from server.api.context import ServerContext
from server.config import ServerConfig
from server.errors import ConfigurationError

_KEEP_ALIVE_SECONDS = 75
_REPLIES_TIMEOUT = 2
"""Seconds for replies to be written out after the last token."""


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: stopping in order means draining first, which the launcher does."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def uvicorn_config(context: ServerContext) -> uvicorn.Config:
    """Raises ConfigurationError for certificates, keys and paths that cannot be used."""
    config = context.config
    _check_root_path(config.root_path)
    _make_profile_directory(config.profile_dir)
    tls = tls_context(config)
    return uvicorn.Config(
        create_app(context),
        http=bounded_connection(config.max_headers, int(config.max_header_kb * 1024)),
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        root_path=config.root_path,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,  # `server.api.middleware.request_log` writes it, with the request's id
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_REPLIES_TIMEOUT,
    )


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """None without --ssl-certfile. Raises ConfigurationError."""
    if config.ssl_certfile is None:
        if config.ssl_keyfile is not None or config.ssl_ca_certs is not None:
            raise ConfigurationError("--ssl-keyfile and --ssl-ca-certs need --ssl-certfile")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password given, OpenSSL would wait at the terminal for one.
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password="")
    except (OSError, ssl.SSLError) as error:
        files = f"--ssl-certfile {config.ssl_certfile}, --ssl-keyfile {config.ssl_keyfile or config.ssl_certfile}"
        raise ConfigurationError(f"{files}: no certificate with an unencrypted key: {error}") from error
    if config.ssl_ca_certs is not None:
        try:
            context.load_verify_locations(config.ssl_ca_certs)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"--ssl-ca-certs {config.ssl_ca_certs}: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_root_path(path: str) -> None:
    if path and (not path.startswith("/") or path.endswith("/")):
        raise ConfigurationError(f"--root-path {path}: must begin with / and not end with it")


def _make_profile_directory(directory: str | None) -> None:
    if directory is not None:
        try:
            Path(directory).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"--profile-dir {directory}: cannot be made: {error}") from error
