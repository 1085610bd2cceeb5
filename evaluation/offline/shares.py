"""Who asks what: questions dealt out in turn, and padding where every rank must ask as many as the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evaluation.plan import Question


def share_of(questions: Sequence[Question], replica: int, num_replicas: int, *, pad: bool) -> list[Question]:
    """Every `num_replicas`-th question from number `replica` on.

    pad: up to the largest share by repeating the last question of the share (or the first of all), whose answer is
    thrown away: a model whose forward pass is collective must run as often on every rank.
    """
    share = list(questions[replica::num_replicas])
    missing = -(-len(questions) // num_replicas) - len(share)
    if not pad or missing <= 0:
        return share
    model = share[-1] if share else questions[0]
    return share + [replace(model, is_padding=True)] * missing
