"""What of each sample has been sent to the client, and what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from server.frontend.sample import Sample


class Part(NamedTuple):
    """A piece of a sample's output, from the first character and the first token that are not out yet to its end."""

    sample: Sample
    first_character: int = 0
    first_token: int = 0
    is_first: bool = True

    @property
    def text(self) -> str:
        return self.sample.text[self.first_character :]

    @property
    def token_ids(self) -> Sequence[int]:
        return self.sample.token_ids[self.first_token :]


class StreamProgress:
    """Cuts the growing samples of a request into parts. interval: fewest tokens in a part that is not the last.

    A part that would have no text waits for the next one.
    """

    def __init__(self, interval: int = 1) -> None:
        self._interval = interval
        self._sent: dict[int, tuple[int, int]] = {}  # characters and tokens, by the sample's index
        self._samples: dict[int, Sample] = {}

    @property
    def samples(self) -> list[Sample]:
        """All that were seen."""
        return list(self._samples.values())

    def next_part(self, sample: Sample) -> Part | None:
        """What to send now, None for nothing yet."""
        index = sample.place.sample_index
        self._samples[index] = sample
        part = Part(sample, *self._sent.get(index, (0, 0)), is_first=index not in self._sent)
        if not sample.is_done and (not part.text or len(part.token_ids) < self._interval):
            return None
        self._sent[index] = (len(sample.text), len(sample.token_ids))
        return part
