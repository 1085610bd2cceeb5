"""Opening a run directory: a new one, one to resume, or a refusal to mix."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evaluation.errors import MixedRunError, RunDirectoryError
from evaluation.run_directory.atomic import create_exclusive, write_atomic
from evaluation.run_directory.layout import RunLayout
from evaluation.run_directory.manifest import Manifest
from evaluation.run_directory.run_item import RunItem, decode_items, encode_items


@dataclass(frozen=True)
class OpenRun:
    """A run and its selected rows in the order of the data file."""

    layout: RunLayout
    manifest: Manifest
    items: Sequence[RunItem]


def rows_entry(items: Sequence[RunItem]) -> dict[str, object]:
    """The manifest's `rows` for these items."""
    digest = hashlib.sha256(encode_items(items)).hexdigest()
    return {"digest": digest, "item_ids": [item.item_id for item in items]}


def create_or_resume(layout: RunLayout, wanted: Manifest, items: Sequence[RunItem]) -> OpenRun:
    """Start a run, or go on with one that asks the same; MixedRunError when it asks something else.

    Several clients may start at once: one of them creates the manifest, the others find it. A changed selection of
    rows (--limit) is no mixture: their keys are the same, so the manifest just names the new selection. Nor is another
    way to tell thinking from answers, which is applied to all raw texts alike.
    """
    try:
        write_atomic(layout.rows(str(wanted.rows["digest"])), encode_items(items))
        created = create_exclusive(layout.manifest, wanted.to_json())
    except OSError as error:
        raise RunDirectoryError(f"cannot write to {layout.root}: {error.strerror}") from None
    if created:
        return OpenRun(layout, wanted, items)
    existing = Manifest.read(layout.manifest)
    if differences := existing.differences(wanted):
        raise MixedRunError(
            f"{layout.root} holds answers to something else, and they must not be mixed:\n  "
            + "\n  ".join(differences)
            + "\nChoose another --output, or pass --new-run to set the earlier answers aside."
        )
    if (existing.rows, existing.thinking) != (wanted.rows, wanted.thinking):
        existing = replace(existing, rows=wanted.rows, thinking=wanted.thinking)
        write_atomic(layout.manifest, existing.to_json())
    return OpenRun(layout, existing, items)


def open_existing(layout: RunLayout) -> OpenRun:
    """A run as it stands, without data file or server; RunDirectoryError when there is none."""
    manifest = Manifest.read(layout.manifest)
    path = layout.rows(str(manifest.rows["digest"]))
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be read: {error.strerror}") from None
    if hashlib.sha256(data).hexdigest() != manifest.rows["digest"]:
        raise RunDirectoryError(
            f"{path}: damaged, its digest is not the one in its name; resume with --data to renew it"
        )
    return OpenRun(layout, manifest, decode_items(data))
