"""Blocks of the KV cache: who holds them, what they contain, and which to give away first.

A block is *held* while its reference count is positive and *free* otherwise. A free block keeps its contents, and its
hash if it was full, until it is allocated again; the least recently freed one goes first. So the prefix cache costs
nothing: it is whatever the free blocks still remember.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

BlockHash = bytes


class BlockPool:
    """Reference counts, contents and LRU order of num_blocks blocks. Pure bookkeeping: it knows no tensors."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._hash_of: list[BlockHash | None] = [None] * num_blocks
        self._block_with: dict[BlockHash, int] = {}
        # Insertion order is LRU order: the first key is the next to be allocated. A plain dict would search for its
        # first key past all that were deleted before it, which takes the longer the larger the pool is.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, remembered contents or not."""
        return len(self._free)

    def can_allocate(self, count: int) -> bool:
        return count <= len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, forgetting their contents. The caller has asked `can_allocate`."""
        assert self.can_allocate(count), f"{count} blocks wanted, {self.num_free} free"
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Give up one hold on each block. Later blocks of a sequence become free first: beginnings are shared most."""
        for block in reversed(list(blocks)):
            self._references[block] -= 1
            assert self._references[block] >= 0, f"block {block} released more often than held"
            if self._references[block] == 0:
                self._free[block] = None

    def match(self, hashes: Sequence[BlockHash]) -> list[int]:
        """The blocks that hold the longest cached beginning of `hashes`; they are not held by this."""
        blocks = []
        for block_hash in hashes:
            block = self._block_with.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_free_among(self, blocks: Iterable[int]) -> int:
        """How many of these are free, and would stop being so by `hold`."""
        return sum(1 for block in blocks if self._references[block] == 0)

    def hold(self, blocks: Iterable[int]) -> None:
        """Add one hold to each block, for a sequence that shares it."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def remember(self, block: int, block_hash: BlockHash) -> None:
        """Record what a full, computed block contains. The first block with some contents stays the cached one."""
        if block_hash not in self._block_with and self._hash_of[block] is None:
            self._block_with[block_hash] = block
            self._hash_of[block] = block_hash

    def forget_all(self) -> None:
        """Empty the prefix cache; held blocks stay held but are not found by later sequences."""
        self._block_with.clear()
        self._hash_of = [None] * self.num_blocks

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of[block]
        if block_hash is not None:
            del self._block_with[block_hash]
            self._hash_of[block] = None
