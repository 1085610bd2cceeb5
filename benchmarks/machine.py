"""What a figure was measured on: processor, memory, and the versions of what computed it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

# The vector and matrix extensions that decide which kernels a library picks, as Linux spells them.
_INSTRUCTION_SETS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),  # x86
    *("asimd", "asimdhp", "asimddp", "sve", "sve2", "i8mm", "bf16"),  # Arm
)
_DISTRIBUTIONS = ("megaserve", "torch", "megatron-core", "transformers", "tokenizers", "numpy", "uvicorn", "aiohttp")


def describe_machine() -> dict[str, Any]:
    """cores: those this process may use. memory_bytes: of the whole machine."""
    cpuinfo = _cpuinfo()
    flags = set((cpuinfo.get("flags") or cpuinfo.get("Features") or "").split())
    return {
        "cpu_model": cpuinfo.get("model name") or platform.processor() or platform.machine(),
        "cpu_family_model": [cpuinfo.get("cpu family"), cpuinfo.get("model")],
        "instruction_sets": [name for name in _INSTRUCTION_SETS if name in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Read from metadata; nothing is imported."""
    found = {"python": platform.python_version()}
    for distribution in _DISTRIBUTIONS:
        try:
            found[distribution] = version(distribution)
        except PackageNotFoundError:  # run from a source tree that is not installed
            found[distribution] = "unknown"
    return found


def peak_rss_bytes(pid: int) -> int:
    """The most resident memory the process has had since it started its present program (VmHWM of proc(5)).

    Unlike getrusage's ru_maxrss it does not include what the parent held when it forked. Raises ProcessLookupError.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError as error:
        raise ProcessLookupError(pid) from error
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0  # a process that has ended and waits for its parent has no memory any more


def _cpuinfo() -> dict[str, str]:
    """The first processor's entry."""
    entries = {}
    for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        entries[name.strip()] = value.strip()
    return entries
