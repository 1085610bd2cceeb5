"""The listening socket: bound and listening before anything slow happens, so that a taken port is reported at once."""

from __future__ import annotations

import errno
import socket

from server.errors import ConfigurationError

_BACKLOG = 2048


def bind_listener(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one. Raises ConfigurationError saying what to change.

    It listens, too: on Linux two sockets with SO_REUSEADDR may be bound to one port while neither listens.
    """
    if not 0 <= port <= 65535:  # the resolver library would silently take it modulo 65536
        raise ConfigurationError(f"--port {port}: must be from 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigurationError(f"--host {host}: cannot be resolved: {error}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(_explain(host, port, error)) from error
    return listener


def url_of(listener: socket.socket, *, is_tls: bool = False) -> str:
    """Where clients on this machine reach the socket."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _explain(host: str, port: int, error: OSError) -> str:
    match error:
        case OSError(errno=errno.EADDRINUSE):
            return f"port {port} on {host} is taken by another process; choose one with --port (0 takes a free one)"
        case OSError(errno=errno.EACCES):
            return f"port {port} needs privileges this process lacks; choose one above 1023 with --port"
        case OSError(errno=errno.EADDRNOTAVAIL):
            return f"--host {host} is not an address of this machine"
        case _:
            return f"cannot listen on {host} port {port}: {error}"
