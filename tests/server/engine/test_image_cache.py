"""Bounded in bytes, least recently used first, never what the step needs; and how scheduling waits for images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.block_pool import BlockPool
from server.engine.image_cache import ImageCache
from server.engine.prompt_image import ImageFiles, PromptImage
from server.engine.scheduler import Scheduler, SchedulerLimits
from server.engine.sequence import Sequence
from server.engine.step_plan import StepPlan, build_plan
from server.request import EngineImage, EngineRequest, SamplingParams

PIXELS = np.zeros((1, 3, 2, 2), dtype=np.float32)


def image(digest: str, tokens: int, first: int = 0) -> PromptImage:
    return PromptImage(digest, first, tokens, ((28, 14),), PIXELS)


def make_cache(tokens: int = 10, per_step: int = 100) -> ImageCache:
    return ImageCache(capacity_bytes=tokens * 8, bytes_per_token=8, tokens_per_step=per_step)


def step(cache: ImageCache, *images: PromptImage) -> tuple[list[bool], list[int], list[str]]:
    cache.begin_step()
    available = [cache.make_available(item) for item in images]
    work = cache.end_step()
    return available, work.evicted, [item.digest for _, item in work.encoded]


def test_an_image_is_encoded_once_and_then_found() -> None:
    cache = make_cache()
    assert step(cache, image("a", 4), image("a", 4)) == ([True, True], [], ["a"])
    assert step(cache, image("a", 4)) == ([True], [], [])
    assert (cache.num_encoded, cache.num_hits) == (1, 1)


def test_the_least_recently_used_goes_first_and_its_slot_is_reused() -> None:
    cache = make_cache()
    step(cache, image("a", 4), image("b", 4))
    step(cache, image("a", 4))
    slot_of_b = cache.slot_of("b")
    assert step(cache, image("c", 4)) == ([True], [slot_of_b], ["c"])
    assert cache.slot_of("c") == slot_of_b


def test_what_this_step_needs_is_not_evicted() -> None:
    cache = make_cache()
    step(cache, image("a", 6))
    assert step(cache, image("a", 6), image("b", 6)) == ([True, False], [], [])
    assert step(cache, image("b", 6))[0] == [True]


def test_a_burst_waits_for_later_steps_but_one_image_always_passes() -> None:
    cache = make_cache(tokens=100, per_step=5)
    assert step(cache, image("a", 9), image("b", 2))[0] == [True, False]
    assert step(cache, image("b", 2), image("c", 3), image("d", 1))[0] == [True, True, False]


def test_forgetting_all_evicts_with_the_next_step() -> None:
    cache = make_cache()
    step(cache, image("a", 4), image("b", 4))
    slots = {cache.slot_of("a"), cache.slot_of("b")}
    cache.forget_all()
    available, evicted, encoded = step(cache, image("a", 4))
    assert (available, set(evicted), encoded) == ([True], slots, ["a"])


def test_a_request_knows_what_its_images_cost() -> None:
    scheduler = make_scheduler(make_cache(tokens=100), budget=5)
    first = make_sequence("a", [image("x", 6, first=2)], 10)
    second = make_sequence("b", [image("x", 6, first=1), image("y", 4, first=8)], 14)
    text = make_sequence("c", [], 3)
    for sequence in (first, second, text):
        scheduler.add(sequence)
    while scheduler.has_work:
        run_step(scheduler)
    of_first, of_second = first.image_usage(), second.image_usage()
    assert of_first is not None and (of_first.num_encoded, of_first.num_cache_hits) == (1, 0)
    assert of_second is not None and (of_second.num_encoded, of_second.num_cache_hits) == (1, 1)
    assert text.image_usage() is None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.just(0)), max_size=5), max_size=30))
def test_ranks_that_follow_the_plan_always_hold_what_the_step_needs(steps: list[list[tuple[str, int]]]) -> None:
    sizes = {name: 1 + ord(name) % 4 for name in "abcdefgh"}
    cache = make_cache(tokens=9)
    held: dict[int, str] = {}  # a rank's slots
    for wanted in steps:
        cache.begin_step()
        available = [name for name, _ in wanted if cache.make_available(image(name, sizes[name]))]
        work = cache.end_step()
        for slot in work.evicted:
            del held[slot]
        for slot, item in work.encoded:
            assert slot not in held
            held[slot] = item.digest
        assert all(held[cache.slot_of(name)] == name for name in available)
        assert sum(sizes[name] for name in held.values()) <= 9
        assert available or not wanted


def make_scheduler(cache: ImageCache, *, budget: int = 64) -> Scheduler:
    return Scheduler(SchedulerLimits(budget, 8, 256, 4), BlockPool(64), cache)


def make_sequence(name: str, images: list[PromptImage], length: int, new: int = 1) -> Sequence:
    request = EngineRequest(request_id=name, prompt_token_ids=[0] * length, params=SamplingParams(max_new_tokens=new))
    return Sequence(request, 4, tuple(images))


def run_step(scheduler: Scheduler) -> tuple[dict[str, int], StepPlan]:
    scheduled = scheduler.schedule()
    assert scheduler.images is not None
    plan = build_plan(scheduled, scheduler.images.end_step(), scheduler.images.slot_of)
    for item in scheduled:
        scheduler.computed(item)
        if item.samples:
            item.sequence.token_ids.append(9)
            if item.sequence.stop_reason(256):
                scheduler.finish(item.sequence)
    return {item.sequence.request_id: item.num_new for item in scheduled}, plan


def test_a_prompt_stops_before_an_image_that_must_wait() -> None:
    scheduler = make_scheduler(make_cache(tokens=100, per_step=4))
    scheduler.add(make_sequence("a", [image("x", 4, first=2), image("y", 4, first=8)], 15))
    assert run_step(scheduler)[0] == {"a": 8}
    computed, plan = run_step(scheduler)
    assert computed == {"a": 7}
    assert plan.spans.tolist() == [[0, 4, 1, 0]]


def test_a_chunk_may_end_inside_an_image() -> None:
    scheduler = make_scheduler(make_cache(tokens=100), budget=5)
    scheduler.add(make_sequence("a", [image("x", 6, first=2)], 10))
    computed, plan = run_step(scheduler)
    assert computed == {"a": 5}
    assert plan.spans.tolist() == [[2, 3, 0, 0]]
    computed, plan = run_step(scheduler)
    assert plan.spans.tolist() == [[0, 3, 0, 3]]
    assert len(plan.encoded) == 0


def test_the_same_text_with_another_image_shares_no_blocks_and_with_the_same_image_does() -> None:
    scheduler = make_scheduler(make_cache(tokens=100))
    # The image begins in the first block. The second red one reuses all but the last token.
    for name, digest, expected in (("1", "red", 20), ("2", "blue", 20), ("3", "red", 1)):
        scheduler.add(make_sequence(name, [image(digest, 6, first=3)], 20))
        assert run_step(scheduler)[0] == {name: expected}


def test_cached_prefixes_need_no_encoding() -> None:
    scheduler = make_scheduler(make_cache(tokens=6))
    scheduler.add(make_sequence("1", [image("x", 6, first=1)], 20))
    run_step(scheduler)
    scheduler.add(make_sequence("2", [image("y", 6, first=1)], 20))  # evicts x
    run_step(scheduler)
    scheduler.add(make_sequence("3", [image("x", 6, first=1)], 20))
    _, plan = run_step(scheduler)
    assert len(plan.encoded) == 0
    assert len(plan.spans) == 0


def test_an_image_that_can_never_be_held_is_refused() -> None:
    scheduler = make_scheduler(make_cache(tokens=5))
    assert "--image-cache-mb" in (scheduler.refusal(make_sequence("a", [image("x", 6)], 10)) or "")


def test_image_plans_round_trip() -> None:
    scheduler = make_scheduler(make_cache(tokens=100))
    scheduler.add(make_sequence("a", [image("x", 4, first=2)], 10))
    _, plan = run_step(scheduler)
    decoded = StepPlan.decode(plan.encode())
    assert decoded.encoded.tolist() == [[0, 1, 4, 1, 3, 2, 2]]
    assert decoded.imgs_sizes.tolist() == [[28, 14]]
    assert decoded.spans.tolist() == [[2, 4, 0, 0]]


def test_pixels_are_checked_when_the_request_comes_and_survive_their_file(tmp_path: Path) -> None:
    file = tmp_path / "pixels"
    values = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    file.write_bytes(values.tobytes())
    wanted = EngineImage(digest="x", first_token=0, num_tokens=1, pixels_file=str(file), shape=(1, 3, 2, 2))
    files = ImageFiles()
    opened = files.open(wanted)
    file.unlink()
    np.testing.assert_array_equal(opened.pixels, values)
    assert files.open(wanted).pixels is opened.pixels, "who asks about the same image shares the mapping"
    del opened
    with pytest.raises(FileNotFoundError):
        files.open(wanted)
    file.write_bytes(b"short")
    with pytest.raises(ValueError, match="5 bytes for float32 pixels"):
        files.open(wanted)
