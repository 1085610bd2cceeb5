"""`megaserve serve` up to the point where ranks start: the port first, then the resolver's verdict."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from server.errors import ConfigurationError
from server.launch_listener import bind_listener, url_of
from server.process_lifetime import bound_command


def serve(*argv: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "server", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_taken_port_is_said_at_once_with_status_2(tmp_path: Path) -> None:
    with bind_listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        result = serve("--load", str(tmp_path / "nothing"), "--port", str(port))
    assert result.returncode == 2
    assert f"port {port} on 127.0.0.1 is taken" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_listener_holds_its_port_before_anything_is_served() -> None:
    with bind_listener("127.0.0.1", 0) as first, pytest.raises(ConfigurationError, match="--port"):
        bind_listener("127.0.0.1", first.getsockname()[1])


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 0), ("192.0.2.1", 0), ("127.0.0.1", 70000)])
def test_impossible_addresses_are_named(host: str, port: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{host}|{port}"):
        bind_listener(host, port)


def test_urls() -> None:
    with bind_listener("::1", 0) if socket.has_ipv6 else bind_listener("127.0.0.1", 0) as listener:
        assert url_of(listener).endswith(str(listener.getsockname()[1]))


def test_the_resolvers_verdict_is_the_exit_status(tmp_path: Path) -> None:
    missing = tmp_path / "no-such-checkpoint"
    result = serve("--load", str(missing), "--port", "0")
    assert result.returncode == 2
    assert str(missing) in result.stderr
    assert "listening on http://127.0.0.1:" in result.stdout
    assert "Traceback" not in result.stderr


def test_a_bound_child_dies_with_its_parent() -> None:
    program = (
        "import subprocess, sys, time\n"
        "from server.process_lifetime import bound_command\n"
        "child = subprocess.Popen(bound_command([sys.executable, '-c', 'import time; print(1, flush=True); "
        "time.sleep(600)']), stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        import select

        assert select.select([child], [], [], 30)[0], "the child outlived its parent"
        os.close(child)


def test_a_child_whose_parent_is_already_gone_ends_at_once() -> None:
    command = bound_command([sys.executable, "-c", "print('ran')"])
    command[3] = "1"  # as if the parent that asked for it had died and something else had adopted the child
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")


def test_sigterm_while_resolving_ends_it_with_status_0(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "server", "--load", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
