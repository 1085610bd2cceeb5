"""All the sequences of one HTTP request: sent together, waited for together, aborted together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from server.errors import RequestFailedError
from server.frontend.detokenizer import DetokenizerFactory
from server.frontend.engine_client import EngineClient
from server.frontend.request_builder import BuiltSample
from server.frontend.sample import Sample, SamplePlace


class RequestTimeoutError(RequestFailedError):
    """The request took longer than --request-timeout."""


class Generation:
    """Started once, closed once; closing aborts what is not done.

    prompts: the built sequences of each prompt. timeout: seconds from the start until everything must be done.
    deadline: that moment, on the event loop's clock. on_close: called once, at the end.
    """

    def __init__(
        self,
        client: EngineClient,
        detokenizers: DetokenizerFactory,
        prompts: Sequence[Sequence[BuiltSample]],
        *,
        streaming: bool,
        timeout: float,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._streaming = streaming
        self._timeout = timeout
        self._on_close = on_close
        self._changed: dict[Sample, None] = {}  # an ordered set
        self._wake = asyncio.Event()
        self.samples: list[Sample] = []
        for prompt_index, choices in enumerate(prompts):
            for choice_index, built in enumerate(choices):
                place = SamplePlace(len(self.samples), prompt_index, choice_index, len(choices))
                self.samples.append(
                    Sample(
                        built,
                        detokenizers,
                        place=place,
                        streaming=streaming,
                        on_change=self._note_change,
                        on_stop=self._abort_in_engine,
                    )
                )
        self._num_open = len(self.samples)

    def start(self) -> None:
        """Send the sequences. Raises EngineUnavailableError or OverloadedError."""
        requests = [msgspec.structs.replace(sample.request, is_streamed=self._streaming) for sample in self.samples]
        self._client.add(requests, self.samples)
        self.deadline = asyncio.get_running_loop().time() + self._timeout

    def close(self) -> None:
        """Abort what is not done; nobody reads it any more."""
        self._client.abort([sample.request.request_id for sample in self.samples if not sample.is_done])
        self._on_close()

    def abort(self, prompt_index: int) -> None:
        """End one prompt's sequences now, with what they have; they finish as aborted."""
        samples = [s for s in self.samples if s.place.prompt_index == prompt_index and not s.is_done]
        self._client.abort([sample.request.request_id for sample in samples])
        for sample in samples:
            sample.abort()

    async def accepted(self) -> None:
        """Returns when the engine has taken on what it may refuse, sequences with grammars. Raises its refusal."""
        if any(sample.request.params.grammar is not None for sample in self.samples):
            await self._wait()
            for sample in self._changed:
                if sample.error is not None:
                    raise sample.error

    async def finished(self) -> list[Sample]:
        """All samples, done. Raises the first sample's error, or RequestTimeoutError."""
        async for _ in self.changes():
            pass
        return self.samples

    async def changes(self) -> AsyncIterator[list[Sample]]:
        """The samples with something new, whenever there are any, until all are done.

        A slow reader finds several steps' changes merged. Raises as `finished` does.
        """
        while self._num_open:
            await self._wait()
            self._wake.clear()
            changed, self._changed = list(self._changed), {}
            for sample in changed:
                if sample.error is not None:
                    raise sample.error
            self._num_open -= sum(sample.is_done for sample in changed)
            yield changed

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout_at(self.deadline):
                await self._wake.wait()
        except TimeoutError:
            raise RequestTimeoutError(f"the request took longer than {self._timeout:g} s (--request-timeout)") from None

    def _note_change(self, sample: Sample) -> None:
        self._changed[sample] = None
        self._wake.set()

    def _abort_in_engine(self, sample: Sample) -> None:
        self._client.abort([sample.request.request_id])
