"""Charts as SVG text, drawn by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

WIDTH_INCHES = 6.4
_BAR_INCHES = 0.3
_MARGIN_INCHES = 0.9
_MOST_BARS = 40


def score_chart(scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Mean and 95 % interval of each scorer."""
    names = list(scores)
    with _axes(len(names)) as (figure, axes):
        means = [scores[name]["mean"] for name in names]
        low = [mean - scores[name]["ci95"][0] for mean, name in zip(means, names, strict=True)]
        high = [scores[name]["ci95"][1] - mean for mean, name in zip(means, names, strict=True)]
        axes.barh(names, means, xerr=[[max(0.0, x) for x in low], [max(0.0, x) for x in high]], capsize=3)
        axes.set_xlim(0, 1)
        axes.set_xlabel("mean score, failures wrong; whiskers: 95 % interval")
        axes.invert_yaxis()
        return _svg(figure)


def category_chart(categories: Mapping[str, Mapping[str, Any]], scorer: str) -> str:
    """Mean of each category, the largest categories when there are many."""
    largest = sorted(categories, key=lambda name: (-categories[name]["n"], name))[:_MOST_BARS]
    names = [name for name in categories if name in set(largest)]
    labels = [f"{name[:40]} (n = {categories[name]['n']})" for name in names]
    with _axes(len(names)) as (figure, axes):
        axes.barh(
            range(len(names)),
            [categories[name]["mean"] for name in names],
            xerr=[categories[name]["stderr"] for name in names],
            tick_label=labels,
            capsize=3,
        )
        axes.set_xlim(0, 1)
        axes.set_xlabel(f"{scorer}, mean ± standard error")
        axes.invert_yaxis()
        return _svg(figure)


def count_chart(counts: Mapping[str, int], label: str) -> str:
    """One bar per name."""
    with _axes(len(counts)) as (figure, axes):
        axes.barh(list(counts), list(counts.values()))
        axes.set_xlabel(label)
        axes.invert_yaxis()
        return _svg(figure)


def histogram(values: Sequence[float], label: str) -> str:
    """Distribution of numbers that are not negative."""
    with _axes(6) as (figure, axes):
        axes.hist(values, bins=min(40, max(5, len(set(values)))))
        axes.set_xlim(left=0)
        axes.set_xlabel(label)
        axes.set_ylabel("questions")
        return _svg(figure)


@contextmanager
def _axes(num_bars: int) -> Iterator[tuple[Any, Any]]:
    # Imported here: it takes half a second, and only a report needs it.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Texts stay texts, and equal data give equal files.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "megaserve", "font.size": 9, "text.parse_math": False}):
        figure = Figure(figsize=(WIDTH_INCHES, _MARGIN_INCHES + _BAR_INCHES * num_bars), layout="constrained")
        yield figure, figure.subplots()


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]
