"""The summary as a pure function of rows and log: the same from a live run and from the logs alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evaluation.run_directory.log_reader import LogContents
from evaluation.run_directory.open_run import OpenRun
from evaluation.run_directory.record import FinalRecords, Record
from evaluation.run_directory.run_item import RunItem
from evaluation.scoring import Scored

_MOST_IDS = 100


def summarize(run: OpenRun, contents: LogContents, final: FinalRecords, scored: Mapping[str, Scored]) -> dict[str, Any]:
    """Contents of summary.json.

    status: "complete" when every row has an outcome and none of them could pass if asked again. done: answered.
    failed: every other outcome, by class in failed_by_class. remaining: rows without an outcome. Rates are per second
    of the time in which requests were under way, so a pause between two sessions does not count. scores and
    categories: see `scoring.Scored`. coverage: see `coverage`.
    """
    outcomes = [final.by_key[item.key] for item in run.items if item.key in final.by_key]
    failures = [record for record in outcomes if not record.status.is_answered]
    retryable = sum(record.is_retryable for record in failures)
    asked = [record for record in outcomes if record.attempt > 0]
    seconds = busy_seconds(asked)
    is_complete = len(outcomes) == len(run.items) and not retryable
    return {
        "status": "complete" if is_complete else "incomplete",
        "items": len(run.items),
        "done": len(outcomes) - len(failures),
        "failed": len(failures),
        "remaining": len(run.items) - len(outcomes),
        "retryable": retryable,
        "failed_by_class": dict(sorted(Counter(record.status.value for record in failures).items())),
        "truncated": sum(record.status == "ok_truncated" for record in outcomes),
        "scores": {name: one.summary for name, one in scored.items() if one.rows},
        "categories": {name: one.categories for name, one in scored.items() if one.categories},
        "coverage": coverage(run.items, final),
        "requests_per_second": _rate(len(asked), seconds),
        "output_tokens_per_second": _rate(_tokens(asked, "completion_tokens"), seconds),
        "prompt_tokens": _tokens(asked, "prompt_tokens"),
        "output_tokens": _tokens(asked, "completion_tokens"),
        "busy_seconds": seconds,
        "log": {
            "lines": len(contents.records),
            "torn": sum(damage.kind == "torn" for damage in contents.damage),
            "corrupt": sum(damage.kind == "corrupt" for damage in contents.damage),
            "duplicates": final.duplicates,
        },
        "model": run.manifest.model,
        "dataset": run.manifest.dataset,
        "parameters": run.manifest.parameters,
        "thinking": {
            "split": run.manifest.thinking,
            "states": dict(sorted(Counter(record.thinking for record in outcomes if record.thinking).items())),
        },
    }


def coverage(items: Sequence[RunItem], final: FinalRecords) -> dict[str, Any]:
    """{expected, present, missing, duplicates, extra}: rows of the run, those with an outcome, ids of the first ones
    without, answers beyond a row's first, and keys in the log that belong to no row (of a larger selection)."""
    keys = {item.key for item in items}
    missing = [item.item_id for item in items if item.key not in final.by_key]
    return {
        "expected": len(items),
        "present": len(items) - len(missing),
        "missing": missing[:_MOST_IDS],
        "duplicates": final.duplicates,
        "extra": len(final.by_key.keys() - keys),
    }


def busy_seconds(records: Iterable[Record]) -> float:
    """Length of the union of the intervals in which the items were under way."""
    total, end = 0.0, float("-inf")
    for start, finish in sorted((record.started_at, record.finished_at) for record in records):
        total += max(0.0, finish - max(start, end))
        end = max(end, finish)
    return total


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _tokens(records: Iterable[Record], name: str) -> int:
    return sum((record.usage or {}).get(name, 0) for record in records)
