"""`megaserve bench compare` on a tiny checkpoint: transformers, a peer in an environment of its own, and servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.cli import main
from benchmarks.compare import chosen_peers
from benchmarks.options import Options
from benchmarks.peers import measurements as m
from benchmarks.peers.catalog import PEERS, Peer, ServerOptions
from benchmarks.peers.environment import PeerEnvironment
from benchmarks.peers.models import hf_directory_itself

STUBS = Path(__file__).with_name("peers")
SHORT = ("--num-prompts", "4", "--max-new-tokens", "5", "--repetitions", "2", "--quiet-wait", "0", "--threads", "1")


class StubPeer(Peer):
    """Runs in this environment, for it needs none of its own."""

    @property
    def environment(self) -> PeerEnvironment:
        return StubEnvironment(STUBS)

    def worker_command(self) -> list[str]:
        return [sys.executable, str(STUBS / "stub_worker.py")]


class StubEnvironment(PeerEnvironment):
    @property
    def is_made(self) -> bool:
        return True

    @property
    def python(self) -> str:
        return sys.executable


def serve(environment: PeerEnvironment, options: ServerOptions) -> list[str]:
    return [environment.python, str(STUBS / "stub_server.py"), str(options.port)]


STUB = StubPeer(
    name="llama_cpp",
    distributions=("pytest",),
    convert=hf_directory_itself,
    variables=lambda environment, threads: {},
    serve=serve,
    request_fields={"cache_prompt": False},
)


@pytest.mark.proof
def test_result(
    tiny_checkpoint: Path,
    tiny_hf_directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(PEERS, "llama_cpp", STUB)
    file = tmp_path / "result.json"
    model = ("--load", str(tiny_checkpoint), "--hf-directory", str(tiny_hf_directory))
    peers = ("--peers", "llama_cpp", "transformers")
    assert main(["compare", *model, *peers, *SHORT, "--concurrency", "2", "--json", str(file)]) == 0
    assert "megaserve" in capsys.readouterr().out
    result = json.loads(file.read_text())
    metrics = result["metrics"]
    assert list(metrics) == [metric.name for metric in m.METRICS]
    for metric in m.IN_PROCESS_METRICS:
        assert metrics[metric.name].keys() == {m.OURS, "llama_cpp", "transformers"}
    for metric in m.HTTP_METRICS:
        assert metrics[metric.name].keys() == {m.OURS, "llama_cpp"}
    rates = metrics[m.OFFLINE.name]
    assert len(rates["transformers"]["values"]) == 2
    ratios = [a / b for a, b in zip(rates[m.OURS]["values"], rates["transformers"]["values"], strict=True)]
    assert rates["transformers"]["times_better"]["max"] == pytest.approx(max(ratios))
    # Transformers is the same model in fp32; the stub only counts.
    assert result["num_equal_sequences"] == {"llama_cpp": 0, "transformers": 4}
    assert result["left_out"] == result["left_out_over_http"] == {}
    assert result["peers"]["llama_cpp"]["pytest"] == pytest.__version__


@pytest.mark.proof
def test_a_peer_that_fails_is_left_out_with_the_reason(
    tiny_checkpoint: Path,
    tiny_hf_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The stub refuses bf16; with no other peer there is nothing to compare with."""
    monkeypatch.setitem(PEERS, "llama_cpp", STUB)
    model = ("--load", str(tiny_checkpoint), "--hf-directory", str(tiny_hf_directory), "--dtype", "bf16")
    assert main(["compare", *model, "--peers", "llama_cpp", "--only", "in-process", *SHORT]) == 1
    assert "no peer could be compared with: llama_cpp: it counts in fp32 alone" in capsys.readouterr().err


def test_a_peer_without_its_environment_is_said_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["compare", "--load", ".", "--peers", "openvino"]) == 2
    assert "benchmarks/peers/make_env openvino" in capsys.readouterr().err


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "--peers", "tensorrt"])
    assert "tensorrt" in capsys.readouterr().err


def test_a_quantized_variant_shares_an_environment_and_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    variant, whole = PEERS["llama_cpp_q4_1"], PEERS["llama_cpp"]
    assert variant.environment == whole.environment
    assert variant.worker_command() == whole.worker_command()
    assert variant.convert is not whole.convert
    monkeypatch.setattr(PeerEnvironment, "is_made", True)
    assert chosen_peers(Options()) == ["vllm", "openvino", "llama_cpp", "transformers"]
    assert chosen_peers(Options(peers=("llama_cpp_q4_1",))) == ["llama_cpp_q4_1"]
