"""Turns a step plan into what the model reads: positions, slots and attention metadata, the same on every rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_providers.backends.step_metadata import DecodeGroup, PrefillChunk, StepMetadata
from server.engine.step_plan import StepPlan

# A decode row joins the group before it while it fills at least this share of the group's width: padding wastes reads,
# another group costs another call.
_LEAST_FILL = 0.7


@dataclass(frozen=True)
class StepInput:
    """token_ids: (T,) int64. logit_rows: (R,) int64, rows of T whose logits are wanted, in sequence order."""

    token_ids: Tensor
    logit_rows: Tensor
    metadata: StepMetadata


def build_input(plan: StepPlan, block_size: int, device: torch.device) -> StepInput:
    """Vectorised over sequences: no Python loop per token, and per sequence only for prefill."""
    num_new = plan.num_new.astype(np.int64)
    row_starts = np.concatenate(([0], np.cumsum(num_new)))
    sequence_of_row = np.repeat(np.arange(plan.num_sequences), num_new)
    offset_in_step = np.arange(row_starts[-1]) - row_starts[sequence_of_row]
    positions = plan.num_computed[sequence_of_row].astype(np.int64) + offset_in_step

    tables = _block_tables(plan)
    slots = tables[sequence_of_row, positions // block_size] * block_size + positions % block_size

    num_decode = int(np.count_nonzero(num_new == 1))
    kv_lengths = plan.num_computed.astype(np.int64) + num_new
    metadata = StepMetadata(
        positions=_tensor(positions, device),
        slot_mapping=_tensor(slots, device),
        num_decode_rows=num_decode,
        decode_groups=_decode_groups(kv_lengths[:num_decode], tables[:num_decode], block_size, device),
        prefill_chunks=[
            _prefill_chunk(index, row_starts, kv_lengths, tables, block_size, device)
            for index in range(num_decode, plan.num_sequences)
        ],
    )
    begins = row_starts[:-1] + plan.logit_rows[:, 0]
    counts = (plan.logit_rows[:, 1] - plan.logit_rows[:, 0]).astype(np.int64)
    logit_rows = np.repeat(begins - np.concatenate(([0], np.cumsum(counts)[:-1])), counts) + np.arange(counts.sum())
    return StepInput(_tensor(plan.token_ids.astype(np.int64), device), _tensor(logit_rows, device), metadata)


def _block_tables(plan: StepPlan) -> NDArray[np.int64]:
    """(S, widest table) block ids, 0 where a table is shorter."""
    num_blocks = plan.num_blocks.astype(np.int64)
    filled = np.arange(num_blocks.max(initial=0)) < num_blocks[:, None]
    tables = np.zeros(filled.shape, dtype=np.int64)
    tables[filled] = plan.block_ids
    return tables


def _decode_groups(
    kv_lengths: NDArray[np.int64], tables: NDArray[np.int64], block_size: int, device: torch.device
) -> list[DecodeGroup]:
    """kv_lengths fall, so a group's first row is its widest."""
    groups = []
    begin = 0
    while begin < len(kv_lengths):
        width = int(kv_lengths[begin])
        end = begin + int(np.count_nonzero(kv_lengths[begin:] >= _LEAST_FILL * width))
        lengths = kv_lengths[begin:end]
        groups.append(_decode_group(slice(begin, end), lengths, tables[begin:end], block_size, device))
        begin = end
    return groups


def _decode_group(
    rows: slice, lengths: NDArray[np.int64], tables: NDArray[np.int64], block_size: int, device: torch.device
) -> DecodeGroup:
    width = -(-int(lengths[0]) // block_size)
    blocks = np.where(np.arange(width) * block_size < lengths[:, None], tables[:, :width], 0)
    padding = np.arange(width * block_size) >= lengths[:, None]
    return DecodeGroup(rows, _tensor(blocks, device), _tensor(padding, device)[:, None, None, :])


def _prefill_chunk(
    index: int,
    row_starts: NDArray[np.int64],
    kv_lengths: NDArray[np.int64],
    tables: NDArray[np.int64],
    block_size: int,
    device: torch.device,
) -> PrefillChunk:
    begin, end = int(row_starts[index]), int(row_starts[index + 1])
    kv_length = int(kv_lengths[index])
    blocks = None
    if kv_length > end - begin:
        blocks = _tensor(tables[index : index + 1, : -(-kv_length // block_size)], device)
    return PrefillChunk(slice(begin, end), kv_length, blocks)


def _tensor(array: NDArray[np.generic], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)
