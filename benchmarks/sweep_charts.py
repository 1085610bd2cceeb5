"""The curves of `bench sweep` as SVG files: text stays text, and equal results give equal files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

_SIZE_INCHES = (9.0, 2.8)


class Panel(NamedTuple):
    """One curve, over a logarithmic axis."""

    label: str
    values: Sequence[float | None]


def draw_sweep(result: dict[str, Any], directory: Path) -> list[Path]:
    """Writes sweep_batch.svg, sweep_context.svg and sweep_scheduler.svg."""
    machine = f"{result['machine']['cpu_model']}, {result['threads']} threads, {result['dtype']}"
    batch, context, scheduler = result["by_batch"], result["by_context"], result["scheduler"]
    charts = {
        "sweep_batch.svg": (
            f"sequences of {batch[0]['context']} tokens; {machine}",
            *("batch size", [point["batch_size"] for point in batch], _panels(batch)),
        ),
        "sweep_context.svg": (
            f"batch of {context[0]['batch_size']}; {machine}",
            *("context, tokens", [point["context"] for point in context], _panels(context)),
        ),
        "sweep_scheduler.svg": (
            "the scheduler alone, 64 requests running",
            *("waiting requests", [point["num_waiting"] for point in scheduler]),
            [Panel(f"step, ms ({name})", [p["step_ms"][name] for p in scheduler]) for name in ("median", "p95")],
        ),
    }
    for name, (title, label, positions, panels) in charts.items():
        _draw(directory / name, title, label, positions, panels)
    return [directory / name for name in charts]


def _panels(points: Sequence[dict[str, Any]]) -> list[Panel]:
    return [
        Panel("decode, tokens/s", [point["decode_tokens_per_second"] for point in points]),
        Panel("decode step p95, ms", [point["step_ms"]["p95"] for point in points]),
        Panel("resident memory (PSS), GB", [point["pss_bytes"] / 1e9 for point in points]),
    ]


def _draw(path: Path, title: str, label: str, positions: Sequence[int], panels: Sequence[Panel]) -> None:
    # Imported here: it takes half a second, which --help need not wait for.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "megaserve", "font.size": 9, "text.parse_math": False}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        figure.suptitle(title)
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            axes.plot(positions, [float("nan") if value is None else value for value in panel.values], marker="o")
            axes.set_xscale("log", base=10 if positions[-1] == 10**4 else 2)
            axes.set_xticks(positions, [str(position) for position in positions], rotation=45)
            axes.minorticks_off()
            axes.set_ylim(0, 1.1 * max((value for value in panel.values if value is not None), default=1.0))
            axes.set_xlabel(label)
            axes.set_ylabel(panel.label)
            axes.grid(alpha=0.3)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
