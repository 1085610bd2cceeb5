"""Numbers that our arguments may take. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from server.arguments.option_groups import flag_of
from server.errors import ConfigurationError


class _Range(NamedTuple):
    """low and high are inside; `above` instead: the number must be greater than it."""

    low: float | None = None
    high: float | None = None
    above: float | None = None

    def holds(self, value: float) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
        )

    def __str__(self) -> str:
        words = [] if self.low is None else [f"at least {self.low:g}"]
        words += [] if self.above is None else [f"more than {self.above:g}"]
        words += [] if self.high is None else [f"at most {self.high:g}"]
        return " and ".join(words)


_COUNT = _Range(low=1)
_NONE_OR_MORE = _Range(low=0)
_DURATION = _Range(above=0)

RANGES: Mapping[str, _Range] = {
    "tensor_model_parallel_size": _COUNT,
    "ckpt_step": _NONE_OR_MORE,
    "threads": _COUNT,
    "max_model_len": _COUNT,
    "max_batched_tokens": _COUNT,
    "max_running_requests": _COUNT,
    "max_decode_slowdown": _NONE_OR_MORE,
    "block_size": _COUNT,
    "speculative_tokens": _NONE_OR_MORE,
    "kv_cache_gb": _Range(above=0),
    "kv_cache_memory_fraction": _Range(above=0, high=1),
    "rank_timeout": _DURATION,
    "port": _Range(low=0, high=65535),
    "default_max_tokens": _COUNT,
    "request_timeout": _DURATION,
    "max_queued_requests": _COUNT,
    "max_batch_items": _COUNT,
    "max_choices": _COUNT,
    "max_logprobs": _NONE_OR_MORE,
    "max_stop_strings": _NONE_OR_MORE,
    "max_body_mb": _Range(above=0),
    "drain_timeout": _NONE_OR_MORE,
    "startup_timeout": _DURATION,
    "progress_timeout": _DURATION,
    "max_images": _NONE_OR_MORE,
    "max_image_mb": _Range(above=0),
    "max_image_pixels": _Range(low=1, high=178_956_970),  # Pillow decodes no more
    "image_store_mb": _NONE_OR_MORE,
    "image_workers": _COUNT,
    "max_headers": _COUNT,
    "max_header_kb": _Range(above=0),
    "remote_image_timeout": _DURATION,
    "max_num_tiles": _COUNT,
}


def check_ranges(values: Mapping[str, Any]) -> None:
    """Raises ConfigurationError naming every flag in `values` whose number is out of range."""
    wrong = [
        f"{flag_of(name)} must be {RANGES[name]}, not {value}"
        for name, value in values.items()
        if name in RANGES and isinstance(value, int | float) and not RANGES[name].holds(value)
    ]
    if wrong:
        raise ConfigurationError("; ".join(wrong))
