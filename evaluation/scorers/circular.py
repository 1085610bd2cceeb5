"""Circular multiple choice (MMBench): one question in every rotation of its options, a hit only when all are hits."""

from __future__ import annotations

from collections.abc import Mapping

_ROTATION_STEP = 1_000_000  # rotation k of question i has the index i + k * 1,000,000


def circular_group(columns: Mapping[str, str]) -> str:
    """What the rotations of one question share: `g_index`, or the index modulo 1,000,000; else the index itself."""
    if group := columns.get("g_index", "").strip():
        return group
    index = columns.get("index", "").strip()
    return str(int(index) % _ROTATION_STEP) if index.isascii() and index.isdigit() else index
