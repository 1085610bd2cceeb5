"""`python -m benchmarks.http_overhead_server DIRECTORY STEP_SECONDS`: the HTTP process, whole, on the stub engine."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.stub_engine import VOCABULARY
from server.config import CheckpointInfo, EngineConfig, ResolvedArgument, ResolvedDocument, ServerConfig
from server.launch import private_directory, run_command, run_resolved
from server.launch_group import LaunchedGroup, RankGroup
from server.launch_listener import bind_listener, url_of
from server.process_lifetime import start_session


def serve(directory: Path, step_seconds: float) -> int:
    """Says its URL, then serves until SIGTERM; the exit status."""
    document = make_document(directory)
    with bind_listener("127.0.0.1", 0) as listener, private_directory() as run_directory:
        print(url_of(listener), flush=True)

        async def start_group(socket_file: Path) -> RankGroup:
            command = [sys.executable, "-m", "benchmarks.stub_engine", "--socket", str(socket_file)]
            command += ["--times", str(directory / "times.json"), "--step-seconds", str(step_seconds)]
            return LaunchedGroup([start_session(command)])

        return run_resolved(document, listener, run_directory, start_group)


def make_document(directory: Path) -> ResolvedDocument:
    """What the resolver would write about a model that has defaults for everything, and the tokenizer made here."""
    write_tokenizer(directory)
    values = dataclasses.asdict(ServerConfig(log_level="warning")) | dataclasses.asdict(EngineConfig(threads=1))
    values |= {"load": str(directory), "tensor_model_parallel_size": 1, "tokenizer_model": str(directory)}
    return ResolvedDocument(
        kind="gpt",
        reasons=["there is no model"],
        arguments=[ResolvedArgument(arg=name, value=value, source="default") for name, value in values.items()],
        conflicts=[],
        checkpoint=CheckpointInfo(str(directory), "torch_dist", 0),
    )


def write_tokenizer(directory: Path) -> None:
    """Bytes as tokens, and names for the rest of the vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = alphabet + [f"<{number}>" for number in range(len(alphabet), VOCABULARY)]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text("{}")


if __name__ == "__main__":
    sys.exit(run_command(lambda: serve(Path(sys.argv[1]), float(sys.argv[2]))))
