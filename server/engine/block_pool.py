"""Blocks of the KV cache: who holds them, what they contain, and which to give away first.

A block is *held* while its reference count is positive and *free* otherwise. A free block with a hash keeps its
contents until no *blank* one is left, which holds nothing that anybody could ask for; then the least recently freed one
goes first. So the prefix cache costs nothing: it is whatever the free blocks still remember. Of the blank ones the last
freed goes first: its memory is still in the processor's caches, while the first touch of fresh memory can cost as much
as a fifth of a prefill.
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
        self._blank = list(reversed(range(num_blocks)))  # the last is the next to be allocated
        # Insertion order is LRU order: the first key is the next to be allocated. A plain dict would search for its
        # first key past all that were deleted before it, which takes the longer the larger the pool is.
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, remembered contents or not."""
        return len(self._blank) + len(self._cached)

    def can_allocate(self, count: int) -> bool:
        return count <= self.num_free

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, forgetting their contents. The caller has asked `can_allocate`."""
        assert self.can_allocate(count), f"{count} blocks wanted, {self.num_free} free"
        blocks = [self._blank.pop() if self._blank else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """Give up one hold on each block. Later blocks of a sequence become free first: beginnings are shared most."""
        for block in reversed(list(blocks)):
            self._references[block] -= 1
            assert self._references[block] >= 0, f"block {block} released more often than held"
            if self._references[block] == 0:
                if self._hash_of[block] is None:
                    self._blank.append(block)
                else:
                    self._cached[block] = None

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
        """Add one hold to each block, for a sequence that shares it. They are held, or `match` found them."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
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
        self._blank += reversed(self._cached)
        self._cached.clear()

    def _evict(self) -> int:
        """The least recently freed block, whose contents nobody finds any more."""
        block, _ = self._cached.popitem(last=False)
        block_hash = self._hash_of[block]
        assert block_hash is not None, "cached"
        del self._block_with[block_hash]
        self._hash_of[block] = None
        return block
