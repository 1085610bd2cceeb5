"""Memory of a process and all its descendants."""

from __future__ import annotations

import psutil

from benchmarks.machine import peak_rss_bytes


def descendants(pid: int) -> list[psutil.Process]:
    """Empty when it has ended, and they with it."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def tree_peak_rss_bytes(pid: int) -> int:
    """Each process's own peak, added up. Shared pages count in each."""
    return sum(map(_peak_or_zero, _tree(pid)))


def tree_pss_bytes(pid: int) -> int:
    """Resident now; a page that several map counts once in all."""
    return sum(map(_pss_or_zero, _tree(pid)))


def _tree(pid: int) -> list[int]:
    return [pid, *(child.pid for child in descendants(pid))]


def _peak_or_zero(pid: int) -> int:
    try:
        return peak_rss_bytes(pid)
    except ProcessLookupError:  # ended since it was listed
        return 0


def _pss_or_zero(pid: int) -> int:
    try:
        pss: int = psutil.Process(pid).memory_full_info().pss
    except psutil.NoSuchProcess:  # ended since it was listed
        return 0
    return pss
