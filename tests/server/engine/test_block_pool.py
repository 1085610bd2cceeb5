"""Reference counts, LRU order and the prefix cache of the block pool."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from server.engine.block_pool import BlockPool


def test_allocates_every_block_once_and_then_refuses() -> None:
    pool = BlockPool(4)
    assert sorted(pool.allocate(4)) == [0, 1, 2, 3]
    assert pool.num_free == 0
    assert not pool.can_allocate(1)
    with pytest.raises(AssertionError, match="1 blocks wanted, 0 free"):
        pool.allocate(1)


def test_a_shared_block_is_free_only_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.hold([block])
    pool.release([block])
    assert pool.num_free == 1
    pool.release([block])
    assert pool.num_free == 2


def test_releasing_too_often_is_a_bug_and_says_so() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="released more often than held"):
        pool.release(blocks)


def test_free_blocks_are_found_by_their_contents_until_they_are_reused() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.remember(first, b"first")
    pool.remember(second, b"second")
    pool.release([first, second])
    assert pool.match([b"first", b"second"]) == [first, second]
    [reused] = pool.allocate(1)
    # The end of a sequence goes first: beginnings are what other sequences share.
    assert reused == second
    assert pool.match([b"first", b"second"]) == [first]


def test_a_match_ends_at_the_first_block_that_is_not_there() -> None:
    pool = BlockPool(3)
    first, _, third = pool.allocate(3)
    pool.remember(first, b"1")
    pool.remember(third, b"3")
    assert pool.match([b"1", b"2", b"3"]) == [first]


def test_of_cached_blocks_the_least_recently_freed_goes_first() -> None:
    pool = BlockPool(3)
    a, b, c = pool.allocate(3)
    for block in (b, a, c):
        pool.remember(block, str(block).encode())
        pool.release([block])
    assert pool.allocate(3) == [b, a, c]


def test_blocks_that_remember_nothing_go_before_cached_ones_and_the_last_freed_first() -> None:
    pool = BlockPool(4)
    a, b, c = pool.allocate(3)  # and one that was never used
    pool.remember(a, b"a")
    for block in (a, b, c):
        pool.release([block])
    assert pool.allocate(2) == [c, b]
    [never_used] = pool.allocate(1)
    assert never_used not in (a, b, c)
    assert pool.match([b"a"]) == [a]
    assert pool.allocate(1) == [a]
    assert pool.match([b"a"]) == []


def test_of_two_blocks_with_the_same_contents_the_first_stays_the_cached_one() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.remember(first, b"same")
    pool.remember(second, b"same")
    pool.release([second])
    pool.allocate(1)
    assert pool.match([b"same"]) == [first]


def test_forgetting_everything_keeps_held_blocks_held() -> None:
    pool = BlockPool(2)
    [block] = pool.allocate(1)
    pool.remember(block, b"x")
    pool.forget_all()
    assert pool.match([b"x"]) == []
    assert pool.num_free == 1
    pool.release([block])
    assert pool.num_free == 2


def test_forgotten_blocks_are_free_like_any_other() -> None:
    pool = BlockPool(2)
    for block in pool.allocate(2):
        pool.remember(block, str(block).encode())
        pool.release([block])
    pool.forget_all()
    assert pool.num_free == 2
    assert sorted(pool.allocate(2)) == [0, 1]


class PoolMachine(RuleBasedStateMachine):
    """Random holders against a model that counts holds per block."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8)
        self.counts = [0] * 8
        self.hashes = 0

    @rule(target=held, count=st.integers(0, 4))
    def allocate(self, count: int) -> list[int]:
        if not self.pool.can_allocate(count):
            return []
        blocks = self.pool.allocate(count)
        assert all(self.counts[block] == 0 for block in blocks)
        for block in blocks:
            self.counts[block] += 1
            self.hashes += 1
            self.pool.remember(block, str(self.hashes % 5).encode())
        return blocks

    @rule(blocks=consumes(held))
    def release(self, blocks: list[int]) -> None:
        self.pool.release(blocks)
        for block in blocks:
            self.counts[block] -= 1

    @rule(target=held, content=st.integers(0, 4))
    def share(self, content: int) -> list[int]:
        blocks = self.pool.match([str(content).encode()])
        self.pool.hold(blocks)
        for block in blocks:
            self.counts[block] += 1
        return blocks

    @rule()
    def forget_all(self) -> None:
        self.pool.forget_all()

    @invariant()
    def free_means_held_by_nobody(self) -> None:
        assert self.pool.num_free == self.counts.count(0)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
