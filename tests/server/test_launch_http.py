"""The HTTP process when its own server cannot go on."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.launch_group import LaunchedGroup, RankGroup
from server.launch_http import run_http
from server.process_lifetime import start_session


async def start_sleeper(_: Path) -> RankGroup:
    return LaunchedGroup([start_session([sys.executable, "-c", "import time; time.sleep(100)"])])


def test_a_server_that_fails_is_logged_and_is_no_success(
    make_document: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as no_listener:  # nothing can be accepted on it
        no_listener.bind(("127.0.0.1", 0))
        assert run_http(make_document(), no_listener, tmp_path, start_sleeper) == 1
    assert "the HTTP server failed" in caplog.text
