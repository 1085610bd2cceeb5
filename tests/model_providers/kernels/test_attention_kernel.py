"""Paged attention against its definition, and the promise that a query's bits are its own sequence's alone."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from model_providers.backends.kv_cache import CacheLayout, KVCache
from model_providers.backends.step_metadata import StepMetadata
from model_providers.kernels.attention_step import AttentionStep
from model_providers.kernels.library import Kernels

MAX_POSITIONS = 512


@dataclass(frozen=True)
class Heads:
    """What an attention layer looks like."""

    kv_heads: int
    group: int
    head_dim: int
    rotary_dim: int
    interleaved: bool
    block_size: int
    dtype: torch.dtype

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.head_dim)


@st.composite
def heads(draw: st.DrawFn) -> Heads:
    head_dim = draw(st.sampled_from([4, 8, 16, 24, 33, 64, 80, 128]))
    rotary_dims = sorted({0, head_dim // 4 * 2, head_dim // 2 * 2})
    return Heads(
        kv_heads=draw(st.integers(1, 2)),
        group=draw(st.sampled_from([1, 2, 3, 4, 7])),
        head_dim=head_dim,
        rotary_dim=draw(st.sampled_from(rotary_dims)),
        interleaved=draw(st.booleans()),
        block_size=draw(st.sampled_from([1, 4, 16, 24, 32, 160])),
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16])),
    )


# (tokens in this step, tokens before it) per sequence, decode first, as the engine orders them.
def steps() -> st.SearchStrategy[list[tuple[int, int]]]:
    decode = st.tuples(st.just(1), st.sampled_from([0, 1, 14, 15, 16, 40, 127, 128, 129, 300]))
    prefill = st.tuples(st.integers(2, 70), st.sampled_from([0, 1, 16, 100, 127, 250]))
    return st.tuples(st.lists(decode, max_size=4), st.lists(prefill, max_size=3)).map(sum_of_lists).filter(bool)


def sum_of_lists(lists: tuple[list[tuple[int, int]], list[tuple[int, int]]]) -> list[tuple[int, int]]:
    return lists[0] + lists[1]


class Attended:
    """Sequences with random queries, keys and values, attended step by step through one cache.

    Blocks are dealt in an order that `seed` shuffles; contents do not depend on it.
    """

    def __init__(self, heads: Heads, lengths: list[int], *, seed: int, placement: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.heads = heads
        width = heads.group + 2
        self.qkv = [
            torch.randn(length, heads.kv_heads, width, heads.head_dim, generator=generator).to(heads.dtype)
            for length in lengths
        ]
        angles = torch.rand(MAX_POSITIONS, heads.rotary_dim // 2, generator=torch.Generator().manual_seed(9)) * 6
        self.cosines = angles.cos() if heads.rotary_dim else None
        self.sines = angles.sin() if heads.rotary_dim else None
        num_blocks = [-(-length // heads.block_size) for length in lengths]
        order = np.random.default_rng(placement).permutation(sum(num_blocks)).astype(np.int32)
        self.tables = np.zeros((len(lengths), max(num_blocks)), dtype=np.int32)
        for row, own in enumerate(np.split(order, np.cumsum(num_blocks)[:-1])):
            self.tables[row, : len(own)] = own
        self.cache = KVCache(
            num_layers=1,
            num_blocks=len(order),
            block_size=heads.block_size,
            num_kv_heads=heads.kv_heads,
            head_dim=heads.head_dim,
            dtype=heads.dtype,
            device=torch.device("cpu"),
            layout=CacheLayout.TRANSPOSED_KEYS,
        )

    def step(self, kernels: Kernels, parts: list[tuple[int, int, int]]) -> list[Tensor]:
        """parts: (sequence, tokens in this step, tokens before it) -> each one's output, (tokens, heads * head_dim)."""
        rows = [sequence for sequence, _, _ in parts]
        num_new = np.array([new for _, new, _ in parts])
        num_computed = np.array([computed for _, _, computed in parts])
        block_size = self.heads.block_size
        metadata = StepMetadata.build(
            num_new, num_computed, self.tables[rows], block_size=block_size, device=torch.device("cpu")
        )
        step = AttentionStep(
            query_starts=metadata.query_starts,
            kv_lengths=metadata.kv_lengths,
            block_tables=metadata.block_tables,
            slots=metadata.slot_mapping,
            positions=metadata.positions,
            cosines=self.cosines,
            sines=self.sines,
            num_kv_heads=self.heads.kv_heads,
            group=self.heads.group,
            head_dim=self.heads.head_dim,
            block_size=block_size,
            interleaved=self.heads.interleaved,
            scale=self.heads.scale,
        )
        kernels.plan_attention(step)
        qkv = torch.cat([self.qkv[sequence][computed : computed + new] for sequence, new, computed in parts])
        out = kernels.attend(step, qkv, self.cache.keys[0], self.cache.values[0])
        return list(torch.split(out, num_new.tolist()))

    def definition(self, sequence: int) -> Tensor:
        """Every token's output in double precision: (tokens, heads * head_dim)."""
        qkv = self.qkv[sequence].double()
        query_and_key, values = self._rotate(qkv[:, :, :-1]), qkv[:, :, -1]
        scores = torch.einsum("qkgd,tkd->kgqt", query_and_key[:, :, :-1], query_and_key[:, :, -1]) * self.heads.scale
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return torch.einsum("kgqt,tkd->qkgd", weights, values).flatten(1)

    def _rotate(self, x: Tensor) -> Tensor:
        if self.cosines is None or self.sines is None:
            return x
        half = self.heads.rotary_dim // 2
        first = slice(0, 2 * half, 2) if self.heads.interleaved else slice(0, half)
        second = slice(1, 2 * half, 2) if self.heads.interleaved else slice(half, 2 * half)
        cosines, sines = (table[: len(x), None, None].double() for table in (self.cosines, self.sines))
        rotated = x.clone()
        rotated[..., first] = x[..., first] * cosines - x[..., second] * sines
        rotated[..., second] = x[..., second] * cosines + x[..., first] * sines
        return rotated


# The fixture is a loaded library, the same for every example.
several = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
SMOLLM2 = Heads(kv_heads=3, group=3, head_dim=64, rotary_dim=64, interleaved=False, block_size=16, dtype=torch.float32)


@several
@given(heads=heads(), parts=steps(), seed=st.integers(0, 2**31))
def test_a_step_of_decode_and_prefill_is_attention_by_definition(
    kernels: Kernels, heads: Heads, parts: list[tuple[int, int]], seed: int
) -> None:
    case = Attended(heads, [new + computed for new, computed in parts], seed=seed, placement=seed)
    before = [(sequence, computed, 0) for sequence, (_, computed) in enumerate(parts) if computed]
    if before:
        case.step(kernels, before)
    outputs = case.step(kernels, [(sequence, new, computed) for sequence, (new, computed) in enumerate(parts)])
    tolerance = 2e-5 if heads.dtype == torch.float32 else 3e-2
    for sequence, (out, (_, computed)) in enumerate(zip(outputs, parts, strict=True)):
        expected = case.definition(sequence)[computed:]
        torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@several
@given(heads=heads(), seed=st.integers(0, 2**31), length=st.sampled_from([5, 16, 130, 300]))
def test_bits_do_not_depend_on_chunks_neighbours_placement_or_threads(
    kernels: Kernels, heads: Heads, seed: int, length: int
) -> None:
    whole = Attended(heads, [length], seed=seed)
    (expected,) = whole.step(kernels, [(0, length, 0)])

    rng = random.Random(seed)
    together = Attended(heads, [length, 300, 60], seed=seed, placement=seed + 1)
    assert torch.equal(together.qkv[0], whole.qkv[0])
    threads = torch.get_num_threads()
    done, neighbours, pieces = 0, [0, 0], []
    try:
        while done < length:
            new = min(length - done, rng.choice([1, 1, 2, 17, 64]))
            parts = [(0, new, done)]
            for index, computed in enumerate(neighbours, start=1):
                room = len(together.qkv[index]) - computed
                own = min(room, rng.choice([1, 1, 5, 40]))
                if own and rng.random() < 0.7:
                    parts.append((index, own, computed))
                    neighbours[index - 1] += own
            rng.shuffle(parts)
            parts.sort(key=lambda part: part[1] > 1)
            torch.set_num_threads(rng.choice([1, 2]))
            outputs = together.step(kernels, parts)
            pieces.append(outputs[[sequence for sequence, _, _ in parts].index(0)])
            done += new
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.cat(pieces), expected)


def test_more_heads_in_a_group_than_rows_in_an_item(kernels: Kernels) -> None:
    case = Attended(replace(SMOLLM2, kv_heads=1, group=50, head_dim=16, rotary_dim=0), [140], seed=4)
    (out,) = case.step(kernels, [(0, 140, 0)])
    torch.testing.assert_close(out.double(), case.definition(0), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_long_decode_is_shared_among_threads_without_moving_a_bit(kernels: Kernels, dtype: torch.dtype) -> None:
    heads = replace(SMOLLM2, dtype=dtype)
    case = Attended(heads, [500], seed=1)
    (whole,) = case.step(kernels, [(0, 500, 0)])
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            (last,) = case.step(kernels, [(0, 1, 499)])
            assert torch.equal(last, whole[-1:])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_and_infinity_do_not_get_into_the_cache(kernels: Kernels, dtype: torch.dtype) -> None:
    case = Attended(replace(SMOLLM2, dtype=dtype), [20, 20], seed=2)
    case.qkv[0][3, 1, -1, :] = float("nan")
    case.qkv[0][4, 0, -2, :] = float("inf")
    case.qkv[0][5, 0, -1, :] = float("-inf")
    outputs = case.step(kernels, [(0, 20, 0), (1, 20, 0)])
    assert all(torch.isfinite(part).all() for part in (*case.cache.keys, *case.cache.values))
    torch.testing.assert_close(outputs[1].double(), case.definition(1), rtol=3e-2, atol=3e-2)


def test_a_query_of_nan_gives_nan(kernels: Kernels) -> None:
    case = Attended(SMOLLM2, [20], seed=3)
    case.qkv[0][7, 2, 0] = float("nan")
    (out,) = case.step(kernels, [(0, 20, 0)])
    is_nan = out.view(20, 9, 64).isnan()
    assert is_nan[7, 6].all()
    assert int(is_nan.sum()) == 64
