"""What the HTTP process reads by itself, and that it needs neither torch nor Megatron for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from server.arguments.preparse import preparse
from server.config import ServerConfig
from server.errors import ConfigurationError


def test_command_line_config_file_default(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("port: 1234\nhost: 0.0.0.0\nload: elsewhere\nnum_layers: 3\nno-such-key: 1\n")
    args = preparse(["--config", str(config), "--port", "99", "--swiglu", "--num-layers", "2", "--load=here"])
    assert (args.server.port, args.server.host, args.load) == (99, "0.0.0.0", "here")
    assert args.server.request_timeout == ServerConfig().request_timeout
    assert preparse(["--config", str(config)]).load == "elsewhere"
    assert not args.prints_only


@pytest.mark.parametrize("flag", ["-h", "--help", "--help-all", "--print-resolved-args", "--print-resolved-args=json"])
def test_commands_that_only_print(flag: str) -> None:
    assert preparse(["--load", "x", flag]).prints_only


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--port", "x"], "--port"),
        (["--port", "70000"], "--port must be at least 0 and at most 65535, not 70000"),
        (["--config", "/does/not/exist"], "cannot be read"),
        (["--log-level", "loud"], "--log-level"),
    ],
)
def test_mistakes(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        preparse(argv)


def test_it_needs_neither_torch_nor_megatron() -> None:
    code = (
        "import sys; from server.arguments.preparse import preparse; import server.arguments.classification;"
        "preparse(['--load', 'x', '--port', '0']);"
        "sys.exit(any(name.partition('.')[0] in ('torch', 'megatron', 'numpy') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
