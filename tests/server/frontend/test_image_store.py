"""Images are kept as long as somebody holds them, whatever others do meanwhile, and no longer."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from image_preprocessing.limits import ImageLimits
from image_preprocessing.settings import ImageSettings
from server.errors import RequestError
from server.frontend.image_store import ImageStore


def encoded(colour: str, side: int = 20) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(file, "PNG")
    return file.getvalue()


RED, BLUE, NO_IMAGE = encoded("red"), encoded("blue"), b"no image"
LARGE = encoded("green").ljust(300_000, b"\0")


def files(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def a_few_turns() -> None:
    """Of the event loop, enough for a request to take what needs no preparation."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def store(make_document: Callable[..., Any], directory: Path) -> Iterator[ImageStore]:
    """One that keeps nothing that is not held."""
    values = make_document("vlm", vision_model_type="siglip", img_h=64, img_w=64, patch_dim=16).values
    limits = ImageLimits(max_bytes=2**20, max_pixels=10**7)
    store = ImageStore(ImageSettings.from_values(values), limits, directory, max_bytes=0, num_workers=2)
    yield store
    store.close()


async def test_a_release_leaves_alone_what_another_request_is_taking(store: ImageStore) -> None:
    first = await store.hold([RED], "image_data")
    taking = asyncio.create_task(store.hold([RED, encoded("blue", 2000)], "image_data"))
    await a_few_turns()
    assert not taking.done(), "it still waits for its other image"
    store.release(first)
    images = await taking
    assert [image.file.exists() for image in images] == [True, True]


async def test_however_requests_overlap_files_are_there_while_held_and_gone_after(
    store: ImageStore, directory: Path
) -> None:
    async def ask(number: int) -> None:
        images = await store.hold([RED, BLUE][:: 1 if number % 2 else -1], "image_data")
        assert all(image.file.exists() for image in images)
        if number % 3:
            await asyncio.sleep(0)
        store.release(images)

    async with asyncio.timeout(60):
        await asyncio.gather(*map(ask, range(60)))
    assert files(directory) == []


async def test_a_refused_request_leaves_nothing(store: ImageStore, directory: Path) -> None:
    with pytest.raises(RequestError, match="image 2"):
        await store.hold([RED, NO_IMAGE, BLUE], "image_data")
    assert files(directory) == []


async def test_a_cancelled_request_gives_back_what_it_had(store: ImageStore, directory: Path) -> None:
    first = await store.hold([RED], "image_data")
    taking = asyncio.create_task(store.hold([RED, encoded("blue", 2000)], "image_data"))
    await a_few_turns()
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert first[0].holds == 1
    store.release([*first, *await store.hold([encoded("blue", 2000)], "image_data")])
    assert files(directory) == []


async def test_a_large_file_is_prepared_once_too(store: ImageStore, directory: Path) -> None:
    first, second = await store.hold([LARGE, LARGE], "image_data")
    assert first is second
    assert (first.holds, len(files(directory))) == (2, 1)
    store.release([first, second])
    assert files(directory) == []
