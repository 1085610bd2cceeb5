"""`megaserve bench compare`: other engines on the same machine and work, in turn with this one, in one run."""

from __future__ import annotations

from typing import Any

from benchmarks.checkpoint import checkpoint_or_smollm2, hugging_face_directory, resolve_serve_arguments, workload_for
from benchmarks.errors import MeasurementError, SetupError
from benchmarks.interference import DISTURBED_SHARE
from benchmarks.machine import describe_machine, versions
from benchmarks.options import Options
from benchmarks.peers.catalog import PEERS, TRANSFORMERS
from benchmarks.peers.in_process import InProcessOutcome, Probes, Work, compare_in_process
from benchmarks.peers.measurements import Measurements
from benchmarks.peers.over_http import compare_over_http
from benchmarks.prompts import encoder_of
from benchmarks.workload import cut_prompts

_DECODE_PROMPT, _FIRST_TOKEN_PROMPT = 64, 512


def run_compare(options: Options) -> dict[str, Any]:
    """The result as JSON values. Raises BenchmarkError."""
    peers = chosen_peers(options)
    work = _work(options)
    results = Measurements()
    in_process, left_out_over_http = InProcessOutcome({}, {}), dict[str, str]()
    if options.only != "http":
        in_process = compare_in_process(work, peers, options.repetitions, options.quiet_wait, results)
    if options.only != "in-process":
        left_out_over_http = compare_over_http(
            work,
            options.serve_arguments(checkpoint_or_smollm2(options.load)),
            [name for name in peers if name in PEERS and PEERS[name].serve is not None],
            concurrency=options.concurrency,
            repetitions=options.repetitions,
            quiet_wait=options.quiet_wait,
            results=results,
        )
    if all(len(contenders) < 2 for contenders in results.values.values()):
        reasons = "; ".join(f"{name}: {why}" for name, why in (in_process.left_out | left_out_over_http).items())
        raise MeasurementError(f"no peer could be compared with: {reasons or 'none of them has a server'}")
    return {
        "benchmark": "compare",
        "metrics": results.describe(),
        "foreign_cpu_shares": results.foreign_cpu_shares,
        "num_disturbed": _num_disturbed(results),
        "num_equal_sequences": in_process.equal_sequences,
        "left_out": in_process.left_out,
        "left_out_over_http": left_out_over_http,
        "peers": {name: _peer_versions(name) for name in peers},
        **work.settings,
        "concurrency": options.concurrency,
        "repetitions": options.repetitions,
        "checkpoint": work.document.checkpoint.path,
        "workload": work.workload.describe(),
        "versions": versions(),
        "machine": describe_machine(),
    }


def chosen_peers(options: Options) -> list[str]:
    """Those asked for, else those that are there. Raises SetupError for one whose environment was not made."""
    if not options.peers:
        made = [name for name, peer in PEERS.items() if peer.variant_of is None and peer.environment.is_made]
        return [*made, TRANSFORMERS]
    for name in options.peers:
        if name in PEERS:
            PEERS[name].environment.require()
    return list(dict.fromkeys(options.peers))


def _work(options: Options) -> Work:
    document = resolve_serve_arguments(options.serve_arguments(checkpoint_or_smollm2(options.load)))
    values = document.values
    if values["tensor_model_parallel_size"] != 1 or values["device"] != "cpu":
        raise SetupError("bench compare runs one rank on a CPU, which is what the peers are made for")
    if values["dtype"] not in ("fp32", "bf16"):
        raise SetupError(f"bench compare takes --dtype fp32 or bf16, not {values['dtype']}: not every peer has that")
    if values["max_model_len"] <= _FIRST_TOKEN_PROMPT:
        raise SetupError(
            f"bench compare times a prompt of {_FIRST_TOKEN_PROMPT} tokens; this model takes {values['max_model_len']}"
        )
    encode = encoder_of(document)
    return Work(
        document,
        hugging_face_directory(options.load, options.hf_directory),
        workload_for(document, options.num_prompts, options.max_new_tokens),
        Probes(*cut_prompts(encode, (_DECODE_PROMPT, _FIRST_TOKEN_PROMPT))),
    )


def _peer_versions(name: str) -> dict[str, str]:
    if name == TRANSFORMERS:
        return {key: value for key, value in versions().items() if key in ("python", "torch", "transformers")}
    peer = PEERS[name]
    return peer.environment.versions(peer.distributions)


def _num_disturbed(results: Measurements) -> int:
    return sum(share >= DISTURBED_SHARE for shares in results.foreign_cpu_shares.values() for share in shares)
