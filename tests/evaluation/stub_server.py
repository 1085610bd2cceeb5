"""A small server with the contract's endpoints and with faults on demand, run as a process of its own.

`python stub_server.py CONFIG.json` prints the port it listens on. Answers depend on the question alone. Each question
meets its own, seeded list of faults before it is answered. Every request is noted in the journal as it arrives.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import web

HANG_SECONDS = 120.0


class Stub:
    def __init__(self, config: dict[str, Any]) -> None:
        self.latency = config.get("latency", 0.0)
        self.faults: list[str] = config.get("faults", [])
        self.faultless: list[str] = config.get("faultless", [])
        self.always_for: dict[str, str] = config.get("always_for", {})
        self.reasoning: str | None = config.get("reasoning")
        self.always: str | None = config.get("always")
        self.seed = config.get("seed", 0)
        self.kind = config.get("kind", "gpt")
        self.checkpoint = config.get("checkpoint", {"path": "/models/tiny", "format": "torch_dist", "iteration": 7})
        self.infos_without_digest: int = config.get("infos_without_digest", 0)
        self.max_model_len: int | None = config.get("max_model_len")
        self.restart_after: int | None = config.get("restart_after")
        self.restart_seconds: float = config.get("restart_seconds", 1.0)
        self.unready_seconds: float = config.get("unready_seconds", 0.0)
        self.unready_until = time.monotonic() + self.unready_seconds
        self.api_key: str | None = config.get("api_key")
        self.without_logprobs: bool = config.get("without_logprobs", False)
        self.journal = Path(config["journal"])
        self.asked: Counter[str] = Counter()
        self.barrier = asyncio.Barrier(config["barrier"]) if "barrier" in config else None

    def planned_faults(self, question: str) -> list[str]:
        if not self.faults or question in self.faultless:
            return []
        draw = random.Random(f"{self.seed}:{question}")
        return [draw.choice(self.faults) for _ in range(draw.randint(0, 2))]

    async def ready(self, request: web.Request) -> web.Response:
        if time.monotonic() < self.unready_until:
            return web.json_response({"reason": "loading"}, status=503)
        return web.json_response({"status": "ready"})

    async def info(self, request: web.Request) -> web.Response:
        arguments = [{"arg": "dtype", "value": "fp32", "source": "default"}]
        checkpoint = self.checkpoint
        if self.infos_without_digest > 0:
            self.infos_without_digest -= 1
            checkpoint = {**checkpoint, "digest": None}
        return web.json_response(
            {"kind": self.kind, "checkpoint": checkpoint, "arguments": arguments, "versions": {"stub": "1"}}
        )

    async def models(self, request: web.Request) -> web.Response:
        model = {"id": "tiny", "object": "model", "max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [model]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        content = body["messages"][-1]["content"]
        question = content if isinstance(content, str) else content[-1]["text"]
        return await self.respond(request, body, question)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self.respond(request, body, body["text"])

    async def respond(self, request: web.Request, body: dict[str, Any], question: str) -> web.StreamResponse:
        self.asked[question] += 1
        entry = {"path": request.path, "question": question, "body": body}
        with self.journal.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        if self.restart_after is not None and self.asked.total() == self.restart_after:
            self.unready_until = time.monotonic() + self.restart_seconds
        if time.monotonic() < self.unready_until:
            return web.json_response({"error": {"message": "restarting"}}, status=503)
        planned = self.planned_faults(question)
        fault = (
            self.always
            or self.always_for.get(question)
            or (planned[self.asked[question] - 1] if self.asked[question] <= len(planned) else None)
        )
        if fault:
            return await self.fail(request, fault)
        if self.barrier:  # nobody is answered before so many are waiting at the same time
            await self.barrier.wait()
        await asyncio.sleep(self.latency)
        if "return_logprob" in body:
            return web.json_response(self.prompt_logprobs(body))
        reply = reply_body(request.path, *answer_to(question))
        if request.path == "/generate":
            reply["meta_info"]["prompt_tokens"] = len(tokenize(question))
        elif self.reasoning is not None:
            reply["choices"][0]["message"]["reasoning_content"] = self.reasoning
        return web.json_response(reply)

    def prompt_logprobs(self, body: dict[str, Any]) -> dict[str, Any]:
        """The stub's "model": a token's log-probability is -1/8 of its length; the likeliest token is a vowel first."""
        reply = reply_body("/generate", "x", "length")
        tokens = tokenize(body["text"])
        reply["meta_info"]["prompt_tokens"] = len(tokens)
        if self.without_logprobs:
            return reply
        start = body["logprob_start_len"]
        if start >= len(tokens):
            raise web.HTTPBadRequest(text=json.dumps({"error": {"message": "logprob_start_len"}}))
        scored = [(-len(token) / 8, zlib.crc32(token.encode()), token) for token in tokens]
        tops = [[[lp if token.strip()[0] in "aeiou" else -0.01, 1, "?"]] for lp, _, token in scored]
        if start == 0:
            scored[0], tops[0] = (None, *scored[0][1:]), None
        reply["meta_info"] |= {"input_token_logprobs": scored[start:], "input_top_logprobs": tops[start:]}
        return reply

    async def fail(self, request: web.Request, fault: str) -> web.StreamResponse:
        match fault:
            case "429":
                return web.json_response({"error": {"message": "busy"}}, status=429, headers={"Retry-After": "1"})
            case "400" | "401" | "500" | "503":
                return web.json_response({"error": {"message": f"fault {fault}"}}, status=int(fault))
            case "context":
                error = {"message": "too long", "code": "context_length_exceeded"}
                return web.json_response({"error": error}, status=400)
            case "hang":
                await asyncio.sleep(HANG_SECONDS)
                return web.Response()
            case "half_body":
                response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
                await response.prepare(request)
                await response.write(b'{"choices": [{"mess')
                assert request.transport is not None
                request.transport.close()
                return response
            case "reset":
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            case "not_json":
                return web.Response(text="<html>gateway</html>", content_type="text/html")
            case "null_content":
                return web.json_response(reply_body(request.path, None, "stop"))
            case "null_length":
                return web.json_response(reply_body(request.path, None, "length"))
            case "empty":
                return web.json_response(reply_body(request.path, "", "stop"))
            case "abort":
                return web.json_response(reply_body(request.path, "half an ans", "abort"))
        raise AssertionError(f"unknown fault {fault}")


def tokenize(text: str) -> list[str]:
    """Words with the blanks before them."""
    return re.findall(r"\s*\w+|\s*[^\w\s]|\s+$", text)


def answer_to(question: str) -> tuple[str, str]:
    """Text and finish reason, from the question alone."""
    if "ECHO:" in question:
        return question.split("ECHO:", 1)[1], "stop"
    number = int.from_bytes(hashlib.sha256(question.encode()).digest()[:4])
    letter = "ABCD"[number % 4]
    texts = (letter, f"{letter}.", f"The answer is {letter}.", f" ({letter})\n", 'no \U0001f937 idea,\tsorry "quoted"')
    return texts[number // 4 % len(texts)], "length" if number % 17 == 0 else "stop"


def reply_body(path: str, text: str | None, reason: str) -> dict[str, Any]:
    if path == "/generate":
        meta = {"finish_reason": {"type": reason}, "prompt_tokens": 11, "completion_tokens": 3}
        return {"text": text, "output_ids": [1, 2, 3], "meta_info": meta}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return {"object": "chat.completion", "choices": [choice], "usage": {"prompt_tokens": 11, "completion_tokens": 3}}


@web.middleware
async def check_key(request: web.Request, handler: Any) -> web.StreamResponse:
    """Like a server with a key: health is open to all, everything else is not."""
    key = request.app[KEY]
    if key and not request.path.startswith("/health") and request.headers.get("Authorization") != f"Bearer {key}":
        return web.json_response({"error": {"message": "no such key"}}, status=401)
    response: web.StreamResponse = await handler(request)
    return response


KEY = web.AppKey("key", object)


async def serve(config: dict[str, Any]) -> None:
    stub = Stub(config)
    app = web.Application(client_max_size=64 * 2**20, middlewares=[check_key])
    app[KEY] = stub.api_key
    app.router.add_get("/health/ready", stub.ready)
    app.router.add_get("/server_info", stub.info)
    app.router.add_get("/v1/models", stub.models)
    app.router.add_post("/v1/chat/completions", stub.chat)
    app.router.add_post("/generate", stub.generate)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", config.get("port", 0))
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_text())))
