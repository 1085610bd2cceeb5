"""One item's way: ask, understand, and ask again where that can help."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from typing import Any

import aiohttp

from evaluation.errors import AuthenticationError
from evaluation.keys import GenerationParameters
from evaluation.prompts import RenderedPrompt
from evaluation.status import Status
from evaluation.transport import protocol
from evaluation.transport.failures import http_failure
from evaluation.transport.gate import ServerGate
from evaluation.transport.outcome import Completion, Failure, Outcome, Reply
from evaluation.transport.retry import RetryBudget, RetryPolicy


def open_session() -> aiohttp.ClientSession:
    """A session without limits of its own: concurrency and timeouts are kept per request, from its dispatch on."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_connect=30.0)
    )


class Client:
    """Asks one server. `model`: name sent to chat endpoints. `timeout`: seconds for one request, from its dispatch."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        server: str,
        gate: ServerGate,
        *,
        model: str,
        parameters: GenerationParameters,
        timeout: float,
        policy: RetryPolicy,
    ) -> None:
        self._session = session
        self._server = server
        self._gate = gate
        self._model = model
        self._parameters = parameters
        self._timeout = timeout
        self._policy = policy

    async def ask(self, key: str, prompt: RenderedPrompt) -> Outcome:
        """Final outcome of one item. Raises RunAbortedError when no item can be asked any more."""
        budget = RetryBudget(self._policy)
        failed: Counter[str] = Counter()
        started_at = time.time()
        while True:
            await self._gate.wait()
            # Fresh for every request: a server may still be busy with the one we gave up.
            request_id = f"{key[:16]}-{secrets.token_hex(6)}"
            dispatched = time.monotonic()
            reply = await self._request(prompt, request_id)
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
        if isinstance(reply, Completion):
            return None
        if reply.status is Status.AUTH:
            raise AuthenticationError(f"{self._server} refuses this client ({reply.message})")
        if reply.status in (Status.OVERLOADED, Status.CONNECTION):
            self._gate.suspect()
        return budget.delay_after(reply, time.monotonic())

    async def _request(self, prompt: RenderedPrompt, request_id: str) -> Reply:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._exchange(prompt, request_id)
        except aiohttp.ClientError as error:  # before TimeoutError: a failed connection attempt can be both
            return _connection_failure(error)
        except TimeoutError:
            return Failure(status=Status.TIMEOUT, message=f"no reply within {self._timeout:g} seconds")
        except OSError as error:
            return _connection_failure(error)

    async def _exchange(self, prompt: RenderedPrompt, request_id: str) -> Reply:
        if prompt.endpoint == "generate":
            path, body = protocol.GENERATE_PATH, protocol.generate_body(prompt, self._parameters, request_id)
        else:
            path, body = protocol.CHAT_PATH, protocol.chat_body(prompt, self._parameters, self._model)
        headers = {"X-Request-Id": request_id}
        async with self._session.post(self._server + path, json=body, headers=headers) as response:
            data = await response.read()
            if response.status != 200:
                return http_failure(response.status, response.headers, data)
        return _parse(prompt, data)


def _connection_failure(error: Exception) -> Failure:
    return Failure(status=Status.CONNECTION, message=f"{type(error).__name__}: {error}"[:500])


def _parse(prompt: RenderedPrompt, data: bytes) -> Reply:
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        return Failure(status=Status.MALFORMED_RESPONSE, message=f"the reply is not JSON: {error}", http_status=200)
    return protocol.parse_generate(value) if prompt.endpoint == "generate" else protocol.parse_chat(value)
