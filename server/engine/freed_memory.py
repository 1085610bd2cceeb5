"""What the C library does with memory that was freed: loading gives it back, serving keeps it for the next step.

glibc alone is told; another C library keeps its own ways.
"""

from __future__ import annotations

import ctypes
import logging

logger = logging.getLogger(__name__)

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
_KEPT_BYTES = 128 * 2**20  # free at the end of the heap before any of it goes back to the kernel
_LARGEST_KEPT_BLOCK = 32 * 2**20  # the most that glibc allows: larger ones come from the kernel, and go back at once


def return_freed_memory() -> None:
    """After loading and packing, what glibc would keep for itself is a good part of the weights' size.

    After the first steps it is what they alone needed.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    else:
        logger.debug("malloc_trim is not available")


def keep_freed_memory() -> None:
    """Logits and activations of one step become those of the next, without page faults for every 4 KB of them."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        logger.debug("mallopt is not available")
        return
    libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BLOCK)
