"""The limit on image bytes under way: never passed, never a deadlock, first come first served."""

from __future__ import annotations

import asyncio
import random

import pytest

from evaluation.transport.byte_budget import ByteBudget


async def test_never_more_than_the_limit_unless_alone():
    budget, held = ByteBudget(100), []
    draw = random.Random(3)
    passed_limit = []

    async def use(count):
        async with budget.hold(count):
            held.append(count)
            if sum(held) > 100:
                passed_limit.append([count for count in held if count])
            await asyncio.sleep(draw.random() / 1000)
            held.remove(count)

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for _ in range(300):
            group.create_task(use(draw.choice((0, 1, 30, 60, 100, 250))))
    assert passed_limit, "larger images than the limit are sent all the same"
    assert all(counts == [250] for counts in passed_limit)


async def test_order_and_cancellation():
    budget, order = ByteBudget(10), []

    async def use(name, count):
        async with budget.hold(count):
            order.append(name)
            await asyncio.sleep(0)

    async with budget.hold(10):
        waiting = [asyncio.create_task(use(name, count)) for name, count in (("a", 8), ("b", 8), ("c", 2))]
        free = asyncio.create_task(use("text", 0))
        await free
        await asyncio.sleep(0)
        waiting[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting[1:])
    assert order == ["text", "b", "c"], "text never waits, and who leaves the line holds nobody up"
