"""Which images' embeddings are kept, bounded in bytes; the embeddings themselves live on every rank, by slot number.

Within a step, what the step uses or encodes cannot be evicted. Between steps anything may be: an image whose prompt is
only half computed is then encoded again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from server.engine.prompt_image import PromptImage


@dataclass
class ImageWork:
    """What one step does to the cache, in this order: evict slots, then encode images into slots."""

    evicted: list[int] = field(default_factory=list)
    encoded: list[tuple[int, PromptImage]] = field(default_factory=list)

    @property
    def num_encoded_tokens(self) -> int:
        return sum(image.num_tokens for _, image in self.encoded)


class ImageCache:
    """Digest -> slot, least recently used first. Pure bookkeeping, on rank 0 alone.

    bytes_per_token: of one embedding. tokens_per_step: images beyond this many tokens wait for the next step, so that a
    burst of images does not hold up who is decoding; one image is always let through.
    """

    def __init__(self, *, capacity_bytes: int, bytes_per_token: int, tokens_per_step: int) -> None:
        self._capacity = capacity_bytes // max(bytes_per_token, 1)
        self._tokens_per_step = tokens_per_step
        self._slots: dict[str, tuple[int, int]] = {}  # digest -> (slot, tokens)
        self._free_slots: list[int] = []
        self._used = 0
        self._pinned: set[str] = set()
        self._work = ImageWork()
        self._budget = tokens_per_step
        self.num_hits = 0
        self.num_encoded = 0

    @property
    def max_tokens_of_image(self) -> int:
        """Larger images can never be held."""
        return self._capacity

    def forget_all(self) -> None:
        """Between steps: drop every image; the next step's work says so to the ranks."""
        for digest in list(self._slots):
            self._evict(digest)

    def begin_step(self) -> None:
        self._pinned.clear()
        self._budget = self._tokens_per_step

    def end_step(self) -> ImageWork:
        """What the ranks have to do before the step's forward pass."""
        work, self._work = self._work, ImageWork()
        return work

    def slot_of(self, digest: str) -> int:
        """The slot of an image that this step has made available."""
        return self._slots[digest][0]

    def holds(self, image: PromptImage) -> bool:
        """Whether the image's embeddings are there already."""
        return image.digest in self._slots

    def make_available(self, image: PromptImage) -> bool:
        """Have the image's embeddings at hand in this step, encoding them if need be; False when that must wait."""
        if self.holds(image):
            if image.digest not in self._pinned:
                self.num_hits += 1
            self._slots[image.digest] = self._slots.pop(image.digest)  # most recently used
            self._pinned.add(image.digest)
            return True
        is_first = not self._work.encoded
        if (image.num_tokens > self._budget and not is_first) or not self._make_room(image.num_tokens):
            return False
        slot = self._free_slots.pop() if self._free_slots else len(self._slots)
        self._slots[image.digest] = (slot, image.num_tokens)
        self._used += image.num_tokens
        self._pinned.add(image.digest)
        self._work.encoded.append((slot, image))
        self._budget -= image.num_tokens
        self.num_encoded += 1
        return True

    def _make_room(self, tokens: int) -> bool:
        if self._used + tokens <= self._capacity:
            return True
        evictable = [digest for digest in self._slots if digest not in self._pinned]
        if self._used - sum(self._slots[digest][1] for digest in evictable) + tokens > self._capacity:
            return False
        for digest in evictable:
            if self._used + tokens <= self._capacity:
                break
            self._evict(digest)
        return True

    def _evict(self, digest: str) -> None:
        slot, size = self._slots.pop(digest)
        self._used -= size
        self._free_slots.append(slot)
        self._work.evicted.append(slot)
