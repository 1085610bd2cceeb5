"""Which frames of an animation are taken: evenly spread ones, as Megatron's examples take them from a video."""

from __future__ import annotations

from PIL.ImageFile import ImageFile

from image_preprocessing.limits import ImageLimits


def count_frames(image: ImageFile, limits: ImageLimits) -> int:
    """Frames in an animated file, found by walking through it: it is left at the first frame beyond a limit.

    Pillow's own `n_frames` would walk a GIF to its end first, however many frames it claims. Raises ImageLimitError.
    """
    count = 1
    while True:
        try:
            image.seek(count)
        except EOFError:
            return count
        count += 1
        limits.check_size(*image.size)
        limits.check_frames(count, *image.size)


def spread_evenly(count: int, wanted: int) -> tuple[int, ...]:
    """Indices of up to `wanted` of `count` frames, first and last among them (one alone is the first).

    Source: the video branch of examples/multimodal/dataset_helpers.py, which truncates a linspace.
    """
    taken = min(count, wanted)
    if taken == 1:
        return (0,)
    return tuple(index * (count - 1) // (taken - 1) for index in range(taken))
