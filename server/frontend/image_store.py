"""Images between HTTP and the engine: decoded and prepared in a pool of threads, once per distinct image.

Prepared pixels lie in files that the engine maps into memory. A file is *held* while a request needs it and may be kept
after that, up to a number of bytes, for the next question about the same image.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from image_preprocessing.errors import ImageError
from image_preprocessing.limits import ImageLimits
from image_preprocessing.pipeline import prepare_image
from image_preprocessing.plan import PatchPlan
from image_preprocessing.settings import ImageSettings
from server.errors import RequestError

_INLINE_BYTES = 1 << 18
"""Of larger images the key is computed in a thread, so that nobody's tokens wait for it."""


@dataclass(eq=False)
class StoredImage:
    """One distinct image. key: SHA-256 of its encoded bytes. digest: of pixels and plan. holds: requests using it."""

    key: str
    digest: str
    num_tokens: int
    shape: tuple[int, ...]
    imgs_sizes: tuple[tuple[int, int], ...]
    file: Path
    num_bytes: int
    holds: int = 0


class ImageStore:
    """One event loop's images. directory: private to this process. max_bytes: of pixels to keep unheld."""

    def __init__(
        self, settings: ImageSettings, limits: ImageLimits, directory: Path, *, max_bytes: int, num_workers: int
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._directory = directory
        self._max_bytes = max_bytes
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="images")
        self._images: dict[str, StoredImage] = {}  # least recently used first
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._num_bytes = 0

    async def hold(self, sources: Sequence[bytes], field: str) -> list[StoredImage]:
        """Prepare each image and hold it until `release`, which the caller owes for what this returns.

        Raises RequestError that names the image's number, from 1, and the reason; then nothing is held.
        """
        held: list[StoredImage] = []
        try:
            tasks = (self._find_or_prepare(source, held) for source in sources)
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for number, result in enumerate(results, 1):
                if isinstance(result, ImageError):
                    raise RequestError(f"{field}: image {number}: {result}", field=field)
                if isinstance(result, BaseException):
                    raise result
        except BaseException:  # cancelled, too
            self.release(held)
            raise
        return [image for image in results if isinstance(image, StoredImage)]

    def release(self, images: Sequence[StoredImage]) -> None:
        """Give up one hold on each, and forget the least recently used beyond what may be kept."""
        for image in images:
            image.holds -= 1
        for image in [image for image in self._images.values() if image.holds == 0]:
            if self._num_bytes <= self._max_bytes:
                return
            del self._images[image.key]
            self._num_bytes -= image.num_bytes
            image.file.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop the pool; what is being prepared is finished first."""
        self._pool.shutdown()

    async def _find_or_prepare(self, data: bytes, held: list[StoredImage]) -> StoredImage:
        """The image, with one hold more, and added to `held`."""
        key = _key(data) if len(data) <= _INLINE_BYTES else await asyncio.to_thread(_key, data)
        while (image := self._images.pop(key, None)) is None:
            task = self._preparing.get(key)
            if task is None:
                task = self._preparing[key] = asyncio.create_task(self._prepare(key, data))
            # Others may wait for the same image: one of them leaving must not stop it.
            await asyncio.shield(task)
            # And before this goes on, a release elsewhere may have thrown it out again: so look.
        self._images[key] = image  # most recently used
        image.holds += 1
        held.append(image)
        return image

    async def _prepare(self, key: str, data: bytes) -> None:
        try:
            image = await asyncio.get_running_loop().run_in_executor(self._pool, self._prepare_in_thread, key, data)
        finally:
            del self._preparing[key]
        self._images[key] = image
        self._num_bytes += image.num_bytes

    def _prepare_in_thread(self, key: str, data: bytes) -> StoredImage:
        prepared = prepare_image(data, self._settings, self._limits)
        file = self._directory / key
        prepared.pixels.tofile(file)
        return StoredImage(
            key=key,
            digest=prepared.digest.hex(),
            num_tokens=prepared.num_tokens,
            shape=prepared.pixels.shape,
            imgs_sizes=prepared.plan.imgs_sizes if isinstance(prepared.plan, PatchPlan) else (),
            file=file,
            num_bytes=prepared.pixels.nbytes,
        )


def _key(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
