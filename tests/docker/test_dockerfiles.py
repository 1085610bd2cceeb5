"""The Dockerfiles against what they name: files, packages, flags, the health route. Images are not built here."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from server.api import routes_health
from server.arguments.flags import add_command_args, add_engine_args, add_model_args, add_server_args

REPOSITORY = Path(__file__).parents[2]
DOCKERFILES = sorted((REPOSITORY / "docker").glob("Dockerfile.*"))
each_dockerfile = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)


class Instruction(NamedTuple):
    keyword: str
    arguments: str


def instructions(dockerfile: Path) -> list[Instruction]:
    """Instructions in order, comments dropped and continued lines joined."""
    lines = [line for line in dockerfile.read_text().splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines()]


def arguments_of(dockerfile: Path, keyword: str) -> list[str]:
    return [instruction.arguments for instruction in instructions(dockerfile) if instruction.keyword == keyword]


def only(values: list[str]) -> str:
    assert len(values) == 1, values
    return values[0]


def health_check_program(dockerfile: Path) -> list[str]:
    """The command of HEALTHCHECK's exec form."""
    return json.loads(only(arguments_of(dockerfile, "HEALTHCHECK")).partition(" CMD ")[2])


@contextmanager
def http_server_answering(status: int) -> Iterator[tuple[int, list[str]]]:
    """A server on a free loopback port that answers all with `status`; gives its port and the paths asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, paths
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_there_is_one_for_each_device() -> None:
    assert [path.name for path in DOCKERFILES] == ["Dockerfile.cpu", "Dockerfile.cuda"]


@each_dockerfile
def test_builds_from_the_image_that_the_builder_chooses(dockerfile: Path) -> None:
    assert instructions(dockerfile)[0] == ("ARG", "BASE_IMAGE")
    known = {"${BASE_IMAGE}"}
    for source in arguments_of(dockerfile, "FROM"):
        image, _, stage = source.partition(" AS ")
        assert image in known
        known.add(stage)


@each_dockerfile
def test_names_no_host(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    assert set(re.findall(r"://([^/:'\"]+)", text)) <= {"127.0.0.1"}
    assert not re.findall(r"\b[\w-]+\.(?:com|org|io|net|ai|dev|cloud)\b", text)


@each_dockerfile
def test_copied_paths_exist_and_reach_the_builder(dockerfile: Path) -> None:
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [line.split()[:-1] for line in arguments_of(dockerfile, "COPY") if not line.startswith("--from")]
    sources = {source for line in copied for source in line}
    assert all((REPOSITORY / source).exists() for source in sources)
    assert sources <= allowed
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert {
        *project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"],
        "pyproject.toml",
        "hatch_build.py",
        "README.md",
    } <= sources


@each_dockerfile
def test_copies_between_stages_name_a_stage(dockerfile: Path) -> None:
    stages = {line.partition(" AS ")[2] for line in arguments_of(dockerfile, "FROM")}
    copied = [line for line in arguments_of(dockerfile, "COPY") if line.startswith("--from=")]
    assert copied
    for line in copied:
        option, source, target = line.split()
        assert option.removeprefix("--from=") in stages - {""}
        assert source == target, "a virtual environment works only where it was made"


@each_dockerfile
def test_requirement_files_exist(dockerfile: Path) -> None:
    named = set(re.findall(r"requirements/[\w.]+", " ".join(arguments_of(dockerfile, "RUN"))))
    assert {"requirements/base.txt", "requirements/uv.txt"} <= named
    assert all((REPOSITORY / name).is_file() for name in named)


def parse_serve_arguments(words: list[str]) -> argparse.Namespace:
    """As `megaserve serve` would; argparse exits when a flag does not exist or a value does not fit."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for add_arguments in (add_model_args, add_server_args, add_engine_args, add_command_args):
        add_arguments(parser)
    return parser.parse_args(words)


@each_dockerfile
def test_entry_point_serves_the_mounted_checkpoint_to_other_machines(dockerfile: Path) -> None:
    script, subcommand, *fixed = json.loads(only(arguments_of(dockerfile, "ENTRYPOINT")))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert script in project["project"]["scripts"]
    assert subcommand == "serve"
    arguments = parse_serve_arguments([*fixed, *json.loads(only(arguments_of(dockerfile, "CMD")))])
    assert arguments.host == "0.0.0.0"
    assert str(arguments.port) == only(arguments_of(dockerfile, "EXPOSE"))
    assert arguments.load == "/checkpoint"


@each_dockerfile
def test_example_commands_hold(dockerfile: Path) -> None:
    comments = [line[1:] for line in dockerfile.read_text().splitlines() if line.startswith("#")]
    commands = re.sub(r"\\\n\s*", " ", "\n".join(comments))
    build = shlex.split(only(re.findall(r"docker build .*", commands)))
    assert build[build.index("--file") + 1] == str(dockerfile.relative_to(REPOSITORY))
    assert build[build.index("--build-arg") + 1].startswith("BASE_IMAGE=")
    image = build[build.index("--tag") + 1]
    run = shlex.split(only(re.findall(r"docker run .*", commands)))
    assert f"{parse_serve_arguments(run[run.index(image) + 1 :]).load}:ro" in run[run.index("--volume") + 1]


@each_dockerfile
def test_installer_flags_exist(dockerfile: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    commands = [
        shlex.split(command)
        for line in arguments_of(dockerfile, "RUN")
        for command in line.split("&&")
        if "/uv pip" in command
    ]
    assert [command[1:3] for command in commands] == [["pip", "sync"], ["pip", "install"]]
    for command in commands:
        shown = subprocess.run([uv, *command[1:3], "--help"], capture_output=True, text=True, check=True).stdout
        assert {word for word in command if word.startswith("--")} <= set(re.findall(r"--[\w-]+", shown))


@each_dockerfile
def test_runs_as_an_ordinary_user_who_exists(dockerfile: Path) -> None:
    last_stage = " ".join(f"{keyword} {arguments}" for keyword, arguments in instructions(dockerfile)).split("FROM ")[
        -1
    ]
    user = only(re.findall(r"\bUSER (\S+)", last_stage))
    assert user.isdecimal()
    assert int(user) > 0
    assert f"useradd --uid {user} " in last_stage
    assert last_stage.index("useradd") < last_stage.index("USER") < last_stage.index("ENTRYPOINT")


def test_both_start_and_are_watched_in_the_same_way() -> None:
    cpu, cuda = DOCKERFILES
    for keyword in ("ENTRYPOINT", "CMD", "EXPOSE", "HEALTHCHECK"):
        assert only(arguments_of(cpu, keyword)) == only(arguments_of(cuda, keyword))


@each_dockerfile
@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_health_check_follows_readiness(dockerfile: Path, status: int, healthy: bool) -> None:
    program, option, code = health_check_program(dockerfile)
    assert (program, option) == ("python", "-c")
    with http_server_answering(status) as (port, paths):
        assert f":{only(arguments_of(dockerfile, 'EXPOSE'))}/" in code
        code = code.replace(f":{only(arguments_of(dockerfile, 'EXPOSE'))}/", f":{port}/")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60)
    assert (done.returncode == 0) == healthy
    assert paths == ["/health/ready"]
    assert set(paths) <= {route.path for route in routes_health.router.routes}
