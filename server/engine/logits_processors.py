"""What changes logits before a token is chosen: penalties, biases, stop tokens that must not come yet, and grammars.

All work on float32 rows, one per sequence, and touch only the rows that ask for it.
Sources: repetition penalty, Keskar et al. 2019 (CTRL), section 4.1; presence and frequency penalties, OpenAI's API
reference. The repetition penalty counts prompt and output, the other two the output alone.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import torch
from torch import Tensor

from server.engine.sequence import Sequence


def process_logits(logits: Tensor, sequences: Items[Sequence]) -> Tensor:
    """logits (rows, vocabulary), one row per sequence -> processed logits; the input is left as it was."""
    wanted = [(row, sequence) for row, sequence in enumerate(sequences) if _changes(sequence)]
    if not wanted:
        return logits
    logits = logits.clone()
    for row, sequence in wanted:
        _process_row(logits[row], sequence)
    return logits


def _changes(sequence: Sequence) -> bool:
    params = sequence.params
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or bool(params.logit_bias)
        or (sequence.num_output_tokens < params.min_new_tokens and bool(params.stop_token_ids))
        or sequence.matcher is not None
    )


def _process_row(row: Tensor, sequence: Sequence) -> None:
    params = sequence.params
    if params.repetition_penalty != 1.0:
        seen = torch.unique(torch.tensor(sequence.token_ids, device=row.device))
        values = row[seen]
        row[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if (params.presence_penalty or params.frequency_penalty) and sequence.num_output_tokens:
        made = torch.tensor(sequence.output_token_ids, device=row.device)
        tokens, counts = torch.unique(made, return_counts=True)
        row[tokens] -= params.frequency_penalty * counts + params.presence_penalty
    if params.logit_bias:
        tokens = torch.tensor(list(params.logit_bias), device=row.device)
        row[tokens] += torch.tensor(list(params.logit_bias.values()), dtype=row.dtype, device=row.device)
    if sequence.num_output_tokens < params.min_new_tokens and params.stop_token_ids:
        row[torch.tensor(params.stop_token_ids, device=row.device)] = float("-inf")
    if sequence.matcher is not None:  # last: no bias brings a forbidden token back
        allowed = np.unpackbits(sequence.matcher.allowed, count=len(row), bitorder="little")
        row.masked_fill_(torch.from_numpy(allowed == 0).to(row.device), float("-inf"))
