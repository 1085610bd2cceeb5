"""Compiles the CPU kernels while the package is built, so that an installed one needs no compiler."""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """For wheels, editable ones included; an sdist carries the sources. Without a compiler the wheel is pure Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        kernels = runpy.run_path(str(Path(self.root) / "model_providers" / "kernels" / "build.py"))
        try:
            kernels["build"](kernels["stale_targets"]())
        except RuntimeError as error:
            self.app.display_warning(f"The CPU kernels are left out, torch operators will serve instead: {error}")
            return
        build_data["artifacts"].append("/model_providers/kernels/lib/*.so")
        build_data["pure_python"] = False
        # Compiled for an operating system and an architecture, but for no Python in particular.
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
