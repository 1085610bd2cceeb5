"""`--config FILE.yaml`: a flat mapping from argument names to values. Torch-free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from server.errors import ConfigurationError


def read_config_file(path: Path) -> dict[str, Any]:
    """The file's values by argparse destination: `max-model-len`, `--max-model-len` and `max_model_len` are the same.

    Raises ConfigurationError naming the file, and the key where one is to blame. Whether arguments of these names exist
    is for the caller to check.
    """
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--config {path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        raise ConfigurationError(f"--config {path}{line}: is not YAML") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigurationError(f"--config {path}: must hold a mapping from argument names to values")
    values: dict[str, Any] = {}
    for key, value in loaded.items():
        name = str(key).removeprefix("--").replace("-", "_")
        if name in values:
            raise ConfigurationError(f"--config {path}: {name} is there twice")
        values[name] = value
    return values
