"""Reading resolved argument values by type; a value of another type is an error that names its argument."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, get_args

from image_preprocessing.colour import Rgb
from image_preprocessing.encoders import Triple
from image_preprocessing.errors import ImageSettingsError

_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")


class ArgumentValues:
    """Values by argparse destination. None counts as absent, since that is how Megatron leaves an argument open.

    Every method raises ImageSettingsError.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def refuse(self, name: str) -> None:
        """Raises where the argument is set; false, zero and empty do not count as set."""
        if self._values.get(name):
            raise ImageSettingsError(name, f"is {self._values[name]!r}: not supported")

    def boolean(self, name: str) -> bool:
        """False where absent."""
        value = self._values.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise ImageSettingsError(name, f"{value!r} is neither true nor false")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        """Without a default the argument is required."""
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise ImageSettingsError(name, "is missing, from the checkpoint's arguments and the command line")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ImageSettingsError(name, f"{value!r} is not an integer")
        return value

    def number(self, name: str, default: float) -> float:
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ImageSettingsError(name, f"{value!r} is not a finite number")
        return float(value)

    def text(self, name: str, default: str) -> str:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ImageSettingsError(name, f"{value!r} is not a text")
        return value

    def choice[Choice: str](self, name: str, choices: Any, default: Choice) -> Choice:
        """`choices` is the Literal of which `default` is one."""
        value: Any = self.text(name, default)
        if value not in get_args(choices):
            raise ImageSettingsError(name, f"{value!r} is not one of {', '.join(get_args(choices))}")
        chosen: Choice = value
        return chosen

    def pixel_triple(self, name: str, default: Triple) -> Triple:
        """One value per channel, scaled to 0..1. Any value above 1 shows that they count to 255."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, list | tuple) or len(value) != 3:
            raise ImageSettingsError(name, f"{value!r} is not one number for each of three channels")
        red, green, blue = (self._finite(name, channel) for channel in value)
        scale = 255.0 if max(red, green, blue) > 1 else 1.0
        return red / scale, green / scale, blue / scale

    def colour(self, name: str, default: str) -> Rgb:
        value = self.text(name, default)
        if not _COLOUR.fullmatch(value):
            raise ImageSettingsError(name, f"{value!r} is not a colour such as #ffffff")
        return int(value[1:3], 16), int(value[3:5], 16), int(value[5:7], 16)

    @staticmethod
    def _finite(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ImageSettingsError(name, f"{value!r} is not a finite number")
        return float(value)
