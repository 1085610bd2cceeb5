"""One request's way: send, understand, and send again where that can help."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from typing import Any

from evaluation.errors import AuthenticationError
from evaluation.status import Status
from evaluation.transport.byte_budget import ByteBudget
from evaluation.transport.failures import http_failure
from evaluation.transport.outcome import Failure, Outcome, Reply
from evaluation.transport.request import HttpRequest
from evaluation.transport.retry import RetryBudget, RetryPolicy
from evaluation.transport.wire import Gate, RawReply, Wire, WireError


class Client:
    """Asks one server. concurrency: requests under way at a time. timeout: seconds for one request, from its dispatch.
    image_bytes: of images in requests under way."""

    def __init__(
        self,
        wire: Wire,
        gate: Gate,
        *,
        concurrency: int,
        image_bytes: ByteBudget,
        timeout: float,
        policy: RetryPolicy,
    ) -> None:
        self._wire = wire
        self._gate = gate
        self._slots = asyncio.Semaphore(concurrency)
        self._image_bytes = image_bytes
        self._timeout = timeout
        self._policy = policy

    async def send(self, key: str, request: HttpRequest) -> Outcome:
        """Final outcome of one request. `key`: what its ids begin with. Raises RunAbortedError when nothing can be
        asked any more."""
        budget = RetryBudget(self._policy)
        failed: Counter[str] = Counter()
        started_at = time.time()
        while True:
            await self._gate.wait()
            # Fresh for every request: a server may still be busy with the one we gave up.
            request_id = f"{key[:16]}-{secrets.token_hex(6)}"
            async with self._image_bytes.hold(request.num_image_bytes), self._slots:
                dispatched = time.monotonic()
                reply = await self._request(request, request_id)
            delay = self._delay_after(reply, budget)
            if delay is None:
                now = time.monotonic()
                return Outcome(
                    reply=reply,
                    attempts=failed.total() + 1,
                    failed=dict(failed),
                    started_at=started_at,
                    finished_at=time.time(),
                    seconds=now - dispatched,
                    request_id=request_id,
                )
            failed[reply.status] += 1
            await asyncio.sleep(delay)

    def _delay_after(self, reply: Reply, budget: RetryBudget) -> float | None:
        """Seconds until the next request, None when the reply is final."""
        if not isinstance(reply, Failure):
            return None
        if reply.status is Status.AUTH:
            raise AuthenticationError(f"{self._wire.name} refuses this client ({reply.message}); see --api-key")
        if reply.status in (Status.OVERLOADED, Status.CONNECTION):
            self._gate.suspect()
        return budget.delay_after(reply, time.monotonic())

    async def _request(self, request: HttpRequest, request_id: str) -> Reply:
        try:
            body = await self._encode(request, request_id)
        except ValueError as error:
            return Failure(status=Status.CLIENT_DATA, message=str(error))
        try:
            async with asyncio.timeout(self._timeout):
                raw = await self._wire.post(request.path, body, request_id)
        except WireError as error:
            return Failure(status=Status.CONNECTION, message=str(error))
        except TimeoutError:
            return Failure(status=Status.TIMEOUT, message=f"no reply within {self._timeout:g} seconds")
        return _understand(request, raw)

    async def _encode(self, request: HttpRequest, request_id: str) -> bytes:
        """Images are read and encoded in a thread, so that they hold nobody up."""
        if request.num_image_bytes:
            return await asyncio.to_thread(request.encode, request_id)
        return request.encode(request_id)


def _understand(request: HttpRequest, raw: RawReply) -> Reply:
    if raw.status != 200:
        return http_failure(raw.status, raw.headers, raw.body)
    try:
        value: Any = json.loads(raw.body)
    except (ValueError, RecursionError) as error:
        return Failure(status=Status.MALFORMED_RESPONSE, message=f"the reply is not JSON: {error}", http_status=200)
    return request.parse(value)
