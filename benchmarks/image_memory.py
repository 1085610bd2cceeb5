"""`megaserve bench images`: memory of a server that sees ever new pictures.

Caches are made small enough to be full early, so that what still grows later is a leak.
"""

from __future__ import annotations

import asyncio
import base64
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.errors import MeasurementError, SetupError
from benchmarks.machine import describe_machine, versions
from benchmarks.options import Options
from benchmarks.repetition import report_progress
from benchmarks.served import ServedModel

DEMO_VLM = Path(__file__).parents[1] / "examples" / "demo_vlm"
SMALL_CACHES = ("--kv-cache-gb", "0.02", "--image-cache-mb", "4", "--image-store-mb", "8")
_SIDE = 64
_SAMPLES = 20
_CONCURRENCY = 16


def run_images(options: Options) -> dict[str, Any]:
    """The result as JSON values. Raises BenchmarkError."""
    checkpoint = options.load or DEMO_VLM
    if not checkpoint.is_dir():
        raise SetupError(f"--load {checkpoint}: no such directory")
    arguments = [*SMALL_CACHES, *options.serve_arguments(checkpoint, prefix_caching=True)]
    with ServedModel(arguments) as served:
        samples, stats = asyncio.run(_run(served, options.num_images))
        served.stop()
    middle, last = samples[len(samples) // 2], samples[-1]
    return {
        "benchmark": "images",
        "num_images": options.num_images,
        "num_encoded": stats["total_images_encoded"],
        "pss_bytes": samples,
        "growth_first_half_bytes": middle - samples[0],
        "growth_second_half_bytes": last - middle,
        "versions": versions(),
        "machine": describe_machine(),
    }


async def _run(served: ServedModel, num_images: int) -> tuple[list[int], dict[str, Any]]:
    async with aiohttp.ClientSession() as session:
        report_progress("megaserve: loading")
        await served.wait_until_ready(session)
        pictures = distinct_pictures(num_images)
        samples = [served.pss_bytes()]
        for _ in range(_SAMPLES):
            await _ask_about(session, served.url, pictures, num_images // _SAMPLES)
            samples.append(served.pss_bytes())
            report_progress(f"{samples[-1] / 1e6:.1f} MB")
        stats = (await served.info(session))["stats"]
    if stats["total_images_encoded"] < num_images // _SAMPLES * _SAMPLES:
        raise MeasurementError(f"{stats['total_images_encoded']} pictures were encoded of {num_images} distinct ones")
    return samples, stats


async def _ask_about(session: aiohttp.ClientSession, url: str, pictures: Iterator[bytes], count: int) -> None:
    """`count` pictures, so many requests at a time."""

    async def client(share: int) -> None:
        for _ in range(share):
            body = {
                "text": "what is the color of the shape?",
                "image_data": base64.b64encode(next(pictures)).decode(),
                "sampling_params": {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True},
            }
            async with session.post(f"{url}/generate", json=body) as reply:
                if reply.status != 200:
                    raise MeasurementError(f"status {reply.status}: {(await reply.text())[:500]}")

    shares = [count // _CONCURRENCY + (index < count % _CONCURRENCY) for index in range(_CONCURRENCY)]
    await asyncio.gather(*map(client, shares))


def distinct_pictures(count: int) -> Iterator[bytes]:
    """PNG files of 64 x 64 random pixels, written by hand: Pillow's memory is not to be in this process's."""
    for seed in range(count):
        pixels = random.Random(seed).randbytes(_SIDE * _SIDE * 3)
        rows = b"".join(b"\0" + pixels[y * _SIDE * 3 : (y + 1) * _SIDE * 3] for y in range(_SIDE))
        header = struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 2, 0, 0, 0)
        chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
        yield b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, chunks))


def _chunk(chunk: tuple[bytes, bytes]) -> bytes:
    name, data = chunk
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
