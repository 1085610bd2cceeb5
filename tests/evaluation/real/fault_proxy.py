"""A server in front of a real one that spoils replies, as a process of its own.

`python fault_proxy.py TARGET SEED` prints its port, then one line per fault on standard output. Every body meets its
own, seeded list of up to two faults before its reply comes through whole. GET requests pass unharmed.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from typing import Any

import aiohttp
from aiohttp import web

FAULTS = ("429", "500", "hang", "half_body", "null_content", "orphan_tag", "reset")
HANG_SECONDS = 60.0


class Proxy:
    def __init__(self, target: str, seed: int, session: aiohttp.ClientSession) -> None:
        self._target = target
        self._seed = seed
        self._session = session
        self._asked: Counter[bytes] = Counter()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        fault = self._fault(body) if request.method == "POST" else None
        if fault:
            print(fault, flush=True)
        match fault:
            case "429":
                return web.json_response({"error": {"message": "busy"}}, status=429, headers={"Retry-After": "1"})
            case "500":
                return web.json_response({"error": {"message": "broken"}}, status=500)
            case "hang":
                await asyncio.sleep(HANG_SECONDS)
            case "reset":
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
        headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        async with self._session.request(
            request.method, self._target + request.path, data=body, headers=headers
        ) as answered:
            data, status = await answered.read(), answered.status
        if fault == "half_body":
            return await self._half(request, data)
        if fault in ("null_content", "orphan_tag"):
            data = spoiled(fault, data)
        return web.Response(body=data, status=status, content_type="application/json")

    def _fault(self, body: bytes) -> str | None:
        fields = json.loads(body)
        fields.pop("rid", None)  # another for every attempt
        question = json.dumps(fields, sort_keys=True).encode()
        draw = random.Random(f"{self._seed}:".encode() + question)
        planned = [draw.choice(FAULTS) for _ in range(draw.randint(0, 2))]
        if "orphan_tag" in planned:
            planned = [fault for fault in planned if fault != "orphan_tag"] + [
                "orphan_tag"
            ]  # it is an answer: the last
        attempt = self._asked[question]
        self._asked[question] += 1
        return planned[attempt] if attempt < len(planned) else None

    @staticmethod
    async def _half(request: web.Request, data: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(data)), "Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(data[: len(data) // 2])
        assert request.transport is not None
        request.transport.close()
        return response


def spoiled(fault: str, data: bytes) -> bytes:
    """The reply without its text, or with a closing tag before it that nothing opened."""
    reply: Any = json.loads(data)
    place, name = (reply["choices"][0]["message"], "content") if "choices" in reply else (reply, "text")
    place[name] = None if fault == "null_content" else f"</think>{place[name]}"
    if fault == "null_content":
        finish = reply["choices"][0] if "choices" in reply else reply["meta_info"]
        finish["finish_reason"] = "stop" if "choices" in reply else {"type": "stop"}
    return json.dumps(reply).encode()


async def serve(target: str, seed: int) -> None:
    async with aiohttp.ClientSession() as session:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", Proxy(target, seed, session).handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
