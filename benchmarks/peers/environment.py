"""A peer's environment, which benchmarks/peers/make_env makes."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.errors import SetupError
from model_providers.checkpoint.smollm2 import default_cache_dir

_ROOT = Path(__file__).parents[2]
_VERSIONS = """
import importlib.metadata, json, platform, sys
print(json.dumps({"python": platform.python_version(), **{n: importlib.metadata.version(n) for n in sys.argv[1:]}}))
"""


@dataclass(frozen=True)
class PeerEnvironment:
    """directory: a virtual environment, with more in it where a peer is compiled."""

    directory: Path

    @classmethod
    def of(cls, name: str) -> PeerEnvironment:
        return cls(default_cache_dir() / "peers" / name)

    @property
    def is_made(self) -> bool:
        """Completely: the last thing that make_env does is to leave a mark."""
        return (self.directory / "made").is_file()

    @property
    def python(self) -> str:
        return str(self.directory / "bin" / "python")

    def require(self) -> None:
        """Raises SetupError, which says how to make it."""
        if not self.is_made:
            raise SetupError(
                f"the environment of {self.directory.name} is not there; make it with "
                f"benchmarks/peers/make_env {self.directory.name}"
            )

    def worker_command(self, module: str) -> list[str]:
        return [self.python, "-m", f"benchmarks.peers.{module}"]

    def variables(self) -> dict[str, str]:
        """So that it finds the workers' sources, and does not look for models elsewhere."""
        return {"PYTHONPATH": str(_ROOT), "HF_HUB_OFFLINE": "1"}

    def versions(self, distributions: tuple[str, ...]) -> dict[str, str]:
        """Read from metadata. Raises SetupError when one is missing."""
        command = [self.python, "-c", _VERSIONS, *distributions]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SetupError(f"the environment of {self.directory.name} is not complete; run make_env again")
        return msgspec.json.decode(done.stdout, type=dict[str, str])
