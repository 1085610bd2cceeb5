"""Starting a server, waiting until it is ready, asking it, stopping it: what the demonstration's steps share."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError
from urllib.request import Request, urlopen

_READY_TIMEOUT = 300.0
_LISTENING = "megaserve: listening on "


class DemoError(Exception):
    """A step did not work; the message says which and where its output is."""


def show_arguments(checkpoint: str, file: Path) -> None:
    """What `--print-resolved-args` says: all of it to `file`, what is neither default nor obvious to the screen."""
    say("its arguments: command line > checkpoint > default")
    serve = ("-m", "server", "--load", checkpoint)
    file.write_text(output_of("the arguments", *serve, "--print-resolved-args"))
    document = json.loads(output_of("the arguments", *serve, "--print-resolved-args=json"))
    print(f"model kind {document['kind']}: {'; '.join(document['reasons'])}")
    for argument in document["arguments"]:
        if argument["source"] != "default" and argument["value"] != argument["default"]:
            note = f"  ({argument['note']})" if argument["note"] else ""
            print(f"  {argument['arg']:<44} {json.dumps(argument['value']):<24} {argument['source']}{note}")
    sources = Counter(argument["source"] for argument in document["arguments"])
    print(", ".join(f"{count} from {source}" for source, count in sources.most_common()))
    print(f"all of them: {file}")


@contextmanager
def served(checkpoint: str, log_file: Path) -> Iterator[str]:
    """A server on a free port, ready; stopped in order at the end."""
    say(f"megaserve serve --load {checkpoint}")
    command = [sys.executable, "-m", "server", "--load", checkpoint, "--port", "0"]
    with log_file.open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        url = _announced_url(process.stdout, log_file)
        _wait_until_ready(url, process, log_file)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            print(f"the server has stopped, exit status {process.wait(60)}")
        except subprocess.TimeoutExpired:
            process.kill()


def _announced_url(stdout: IO[str], log_file: Path) -> str:
    for line in stdout:
        if line.startswith(_LISTENING):
            return line.removeprefix(_LISTENING).strip()
    raise DemoError(f"the server did not start; see {log_file}")


def _wait_until_ready(url: str, process: subprocess.Popen[str], log_file: Path) -> None:
    started = time.monotonic()
    while time.monotonic() - started < _READY_TIMEOUT:
        if process.poll() is not None:
            raise DemoError(f"the server ended with status {process.returncode}; see {log_file}")
        try:
            with urlopen(f"{url}/health/ready", timeout=5):
                print(f"ready at {url} after {time.monotonic() - started:.1f} s")
                return
        except (URLError, OSError):  # 503 while the ranks load
            time.sleep(0.2)
    raise DemoError(f"the server was not ready after {_READY_TIMEOUT:.0f} s; see {log_file}")


def generate(url: str, text: str, *, max_new_tokens: int, image_data: str | None = None) -> dict[str, Any]:
    """The greedy reply of POST /generate."""
    body: dict[str, Any] = {"text": text, "sampling_params": {"max_new_tokens": max_new_tokens, "temperature": 0}}
    if image_data is not None:
        body["image_data"] = image_data
    with post(url, body) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def post(url: str, body: dict[str, Any]) -> Any:
    """The open reply of POST /generate, a context manager."""
    request = Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urlopen(request, timeout=120)


def get_json(url: str, path: str) -> Any:
    """What a GET answers."""
    with urlopen(f"{url}{path}", timeout=30) as reply:
        return json.load(reply)


def stay_up(url: str) -> None:
    """Until Ctrl-C."""
    say(f"the server stays up at {url}; Ctrl-C ends it")
    signal.pause()


def output_of(step: str, *arguments: str) -> str:
    """What a Python command prints. Raises DemoError when it fails."""
    done = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"{step} could not be made: exit status {done.returncode}")
    return done.stdout


def say(text: str) -> None:
    """A heading."""
    print(f"\n== {text}", flush=True)
