"""A step's arrays in one buffer: what arrives is what was sent. Pinned memory and streams need a GPU."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from server.engine.input_transfer import Arrays, PackedLayout, PackedTransfer, transfer_to

CPU = torch.device("cpu")
arrays = st.builds(
    lambda dtype, shape, first: (first + np.arange(np.prod(shape, dtype=int), dtype=dtype)).reshape(shape),
    st.sampled_from([np.int32, np.int64]),
    st.lists(st.integers(0, 5), min_size=1, max_size=2),
    st.integers(-9, 9),
)
steps = st.lists(arrays, min_size=1, max_size=8)


def assert_arrived(sent: Arrays, tensors: list[torch.Tensor]) -> None:
    assert len(tensors) == len(sent)
    for array, tensor in zip(sent, tensors, strict=True):
        assert tensor.dtype == torch.from_numpy(array).dtype
        assert tensor.shape == array.shape
        assert tensor.tolist() == array.tolist()


@given(st.lists(steps, min_size=1, max_size=4))
def test_each_step_arrives_whole_and_stays(sent: list[Arrays]) -> None:
    transfer = PackedTransfer(CPU)
    arrived = [transfer(step) for step in sent]
    for step, tensors in zip(sent, arrived, strict=True):
        assert_arrived(step, tensors)


@given(steps)
def test_memory_of_the_same_layout_is_written_again(sent: Arrays) -> None:
    transfer, layout = PackedTransfer(CPU), PackedLayout.of(sent)
    memory = transfer.allocate(layout)
    views = layout.views(memory)
    for step in (sent, [array + 1 for array in sent]):
        assert PackedLayout.of(step) == layout
        transfer.copy(step, layout, memory)
        assert_arrived(step, views)


def test_a_cpu_gets_the_arrays_themselves() -> None:
    array = np.arange(3)
    (tensor,) = transfer_to(CPU)([array])
    array[0] = 7
    assert tensor.tolist() == [7, 1, 2]
