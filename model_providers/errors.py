"""Errors about checkpoints and models.

ModelProviderError
├── CheckpointError          a file is missing, damaged, hostile or does not hold what it should; names the file
└── UnsupportedModelError    the arguments describe a model that cannot be built here; names the argument
"""

from __future__ import annotations

from pathlib import Path


class ModelProviderError(Exception):
    """Root of the tree."""


class CheckpointError(ModelProviderError):
    """`path` is the file or directory at fault; the message begins with it."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = Path(path)
        self.reason = reason


class UnsupportedModelError(ModelProviderError):
    """`argument` is the argparse destination of the argument at fault."""

    def __init__(self, argument: str, reason: str) -> None:
        super().__init__(f"{argument}: {reason}")
        self.argument = argument
        self.reason = reason
