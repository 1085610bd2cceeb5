"""lmms-eval's two files: `{date}_results.json`, and `{date}_samples_{task}.jsonl` with one line a document."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from evaluation.canonical import sha256_json
from evaluation.errors import RunDirectoryError
from evaluation.export.table import dataset_name, in_file_name
from evaluation.run_directory.atomic import replacing, write_atomic
from evaluation.run_directory.manifest import Manifest
from evaluation.run_directory.record import Record
from evaluation.run_directory.run_item import RunItem
from evaluation.scoring import Scored


def export_lmms_eval(
    folder: Path,
    manifest: Manifest,
    items: Sequence[RunItem],
    records: Mapping[str, Record],
    scored: Mapping[str, Scored],
) -> list[Path]:
    """Write `folder/{model}/...` and return the paths. The date is that of the run's beginning, so a second export
    replaces the first."""
    model, task = str(manifest.model.get("name")), dataset_name(manifest)
    date = time.strftime("%Y%m%d_%H%M%S", time.gmtime(manifest.created_at))
    results = folder / in_file_name(model) / f"{date}_results.json"
    samples = folder / in_file_name(model) / f"{date}_samples_{task}.jsonl"
    score_of = {name: {row.key: row.score for row in one.rows} for name, one in scored.items()}

    def lines() -> Iterator[dict[str, Any]]:
        return (_sample(number, item, records.get(item.key), score_of) for number, item in enumerate(items))

    with replacing(samples) as temporary:
        with temporary.open("x", encoding="ascii") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines())
        _check_read_back(samples, lines(), temporary)
    write_atomic(results, json.dumps(_results(manifest, task, len(items), scored), indent=2).encode() + b"\n")
    return [results, samples]


def _check_read_back(path: Path, expected: Iterable[dict[str, Any]], temporary: Path) -> None:
    with temporary.open(encoding="ascii") as file:
        for number, (one, line) in enumerate(zip_longest(expected, file), start=1):
            if one is None or line is None or json.loads(line) != one:
                raise RunDirectoryError(f"{path}: line {number} does not come back as it was; the log has everything")


def _sample(
    doc_id: int, item: RunItem, record: Record | None, score_of: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    answer = record.answer or "" if record else ""
    responses: list[Any] = [record.text if record and record.text is not None else answer]
    sample: dict[str, Any] = {
        "doc_id": doc_id,
        "input": item.columns.get("question", ""),
        "target": _target(item),
        "filtered_resps": [answer],
        "token_counts": [{"output_tokens": record.usage["completion_tokens"]} if record and record.usage else None],
        "doc_hash": sha256_json(item.columns),
    }
    if record and record.likelihoods:
        responses = [[[one["logprob"], one["is_greedy"]] for one in record.likelihoods]]
    if responses != sample["filtered_resps"]:
        sample["resps"] = [responses]
    return sample | {name: scores[item.key] for name, scores in score_of.items() if item.key in scores}


def _target(item: RunItem) -> Any:
    return item.references[0] if len(item.references) == 1 else list(item.references)


def _results(manifest: Manifest, task: str, count: int, scored: Mapping[str, Scored]) -> dict[str, Any]:
    metrics: dict[str, Any] = {"alias": task}
    for name, one in scored.items():
        if one.rows:
            metrics[f"{name},none"] = one.summary["mean"]
            metrics[f"{name}_stderr,none"] = one.summary["stderr"]
    return {
        "results": {task: metrics},
        "configs": {task: {"task": task, "output_type": manifest.request_type.value, "metadata": manifest.parameters}},
        "versions": {task: "megaserve"},
        "n-shot": {task: 0},
        "n-samples": {task: {"original": count, "effective": count}},
        "config": {"model": "megaserve", "model_args": manifest.model, "limit": None},
        "model_name": manifest.model.get("name"),
        "date": manifest.created_at,
    }
