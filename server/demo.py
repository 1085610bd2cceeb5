"""`megaserve demo`: one real checkpoint from build to score, each step an ordinary command that anybody can type.

SmolLM2 is written as a Megatron checkpoint, served, asked over HTTP, and evaluated on the repository's own questions by
a client that is killed half way and resumed.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.error import URLError
from urllib.request import Request, urlopen

_QUESTIONS = Path(__file__).parents[1] / "examples" / "general_knowledge_mcq.jsonl"
_LINES_BEFORE_KILL = 60
_READY_TIMEOUT = 300.0
_LISTENING = "megaserve: listening on "


class DemoError(Exception):
    """A step did not work; the message says which and where its output is."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration -> 0, or 1 when a step failed."""
    arguments = _parse(argv)
    run = arguments.output or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    try:
        run.mkdir(parents=True)
        _demonstrate(run, arguments.serve)
    except FileExistsError:
        print(f"megaserve: error: {run} exists already; name another directory with --output", file=sys.stderr)
        return 1
    except DemoError as error:
        print(f"megaserve: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="megaserve demo", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--serve", action="store_true", help="leave the server up at the end, until Ctrl-C")
    parser.add_argument("--output", type=Path, help="directory for logs and results (default: runs/demo-DATE)")
    return parser.parse_args(argv)


def _demonstrate(run: Path, leave_up: bool) -> None:
    if not _QUESTIONS.is_file():
        raise DemoError(f"{_QUESTIONS} is missing; run the demo from a checkout of the repository")
    _say("SmolLM2-135M-Instruct as a Megatron checkpoint")
    built = _output_of("the checkpoint", "-m", "model_providers.checkpoint.smollm2")
    checkpoint = built.strip().splitlines()[-1]
    print(checkpoint)
    _say("its arguments: command line > checkpoint > default")
    _show_arguments(checkpoint, run)
    with _server(checkpoint, run / "server.log") as url:
        _ask(url)
        _evaluate(url, run / "evaluation")
        if leave_up:
            _say(f"the server stays up at {url}; Ctrl-C ends it")
            signal.pause()


def _show_arguments(checkpoint: str, run: Path) -> None:
    serve = ("-m", "server", "--load", checkpoint)
    (run / "resolved_arguments.txt").write_text(_output_of("the arguments", *serve, "--print-resolved-args"))
    document = json.loads(_output_of("the arguments", *serve, "--print-resolved-args=json"))
    print(f"model kind {document['kind']}: {'; '.join(document['reasons'])}")
    for argument in document["arguments"]:
        if argument["source"] != "default" and argument["value"] != argument["default"]:
            note = f"  ({argument['note']})" if argument["note"] else ""
            print(f"  {argument['arg']:<44} {json.dumps(argument['value']):<24} {argument['source']}{note}")
    sources = Counter(argument["source"] for argument in document["arguments"])
    print(", ".join(f"{count} from {source}" for source, count in sources.most_common()))
    print(f"all of them: {run / 'resolved_arguments.txt'}")


@contextmanager
def _server(checkpoint: str, log_file: Path) -> Iterator[str]:
    """A server on a free port, ready; stopped in order at the end."""
    _say("megaserve serve")
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


def _ask(url: str) -> None:
    _say("three questions over POST /generate")
    for text in ("The capital of France is", "Water is made of hydrogen and"):
        with _post(url, text, max_new_tokens=16) as reply:
            answer = json.load(reply)
        print(f"{text} ->{answer['text']!r}  ({answer['meta_info']['completion_tokens']} tokens)")
    text = "Once upon a time"
    print(f"{text} (streamed) -> ", end="", flush=True)
    shown = ""
    with _post(url, text, max_new_tokens=40, stream=True) as reply:
        for line in reply:
            data = line.decode().strip().removeprefix("data: ")
            if data and data != "[DONE]":
                so_far = json.loads(data)["text"]
                print(so_far[len(shown) :], end="", flush=True)
                shown = so_far
    print()


def _post(url: str, text: str, *, max_new_tokens: int, stream: bool = False) -> Any:
    body = {"text": text, "sampling_params": {"max_new_tokens": max_new_tokens, "temperature": 0}, "stream": stream}
    request = Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urlopen(request, timeout=120)


def _evaluate(url: str, output: Path) -> None:
    _say(f"megaserve evaluate on {_QUESTIONS.name}, killed after {_LINES_BEFORE_KILL} answers")
    command = [sys.executable, "-m", "evaluation", "--server", url, "--data", str(_QUESTIONS), "--output", str(output)]
    command += ["--max-new-tokens", "16"]
    client = subprocess.Popen(command)
    while client.poll() is None and _count_lines(output / "log") < _LINES_BEFORE_KILL:
        time.sleep(0.05)
    client.kill()
    client.wait()
    kept = _count_lines(output / "log")
    _say(f"killed with {kept} answers on disk; the same command again goes on from there")
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        raise DemoError(f"the evaluation ended with status {status}; its records are in {output}")
    summary = json.loads((output / "summary.json").read_text())
    _say("result")
    for scorer, score in summary["scores"].items():
        print(f"{scorer}: {score['mean']:.3f} ± {score['stderr']:.3f} on {score['n']} questions")
    print(f"{summary['done']} answered, {summary['failed']} failed, {summary['output_tokens_per_second']:.0f} tokens/s")
    print(f"results: {output / 'export' / 'results.tsv'}")


def _count_lines(log_directory: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in log_directory.glob("*.jsonl"))


def _output_of(step: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"{step} could not be made: exit status {done.returncode}")
    return done.stdout


def _say(text: str) -> None:
    print(f"\n== {text}", flush=True)
