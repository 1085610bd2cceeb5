"""Before the first question: wait for the server, and find out which model it is that will be measured."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

from evaluation.canonical import sha256_json
from evaluation.errors import AuthenticationError, PreflightError
from evaluation.transport.gate import probe_ready
from evaluation.transport.http_wire import open_session
from evaluation.transport.outcome import Failure, PromptTokens
from evaluation.transport.prompt_tokens import prompt_tokens_request

INFO_PATH = "/server_info"
MODELS_PATH = "/v1/models"
REQUEST_TIMEOUT_SECONDS = 30.0
PROBE_INTERVAL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """The model behind a server.

    identity: digest of what tells this model from another. name: on the chat endpoint. kind: "gpt" or "vlm".
    checkpoint: {path, format, iteration, ...}. info: all that /server_info answered. max_model_len: tokens of prompt
    and answer together, None where the server does not say.
    """

    identity: str
    name: str
    kind: str
    checkpoint: dict[str, Any]
    dtype: str | None
    info: dict[str, Any]
    max_model_len: int | None = None

    @property
    def takes_images(self) -> bool:
        return self.kind != "gpt"

    def to_dict(self) -> dict[str, Any]:
        return {
            "identity": self.identity,
            "name": self.name,
            "kind": self.kind,
            "checkpoint": self.checkpoint,
            "dtype": self.dtype,
        }

    def __str__(self) -> str:
        where = f"{self.checkpoint.get('path')}, iteration {self.checkpoint.get('iteration')}"
        return f"{self.name} ({self.kind}, {self.dtype or 'unknown dtype'}) from {where}"


async def inspect_server(server: str, max_wait: float, api_key: str | None = None) -> ServedModel:
    """The model of a ready server. PreflightError when it is down, or not ready within `max_wait` seconds;
    AuthenticationError when it refuses this client."""
    async with open_session(api_key) as session:
        try:
            await _wait_until_ready(session, server, max_wait)
            info = await _described(session, server, max_wait)
            models = await _get_json(session, server + MODELS_PATH)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise PreflightError(
                f"no server answers at {server}: {reason}\nStart one with `megaserve serve --load CHECKPOINT`, "
                "or correct --server."
            ) from None
    return served_model(info, models, server)


def served_model(info: Any, models: Any, server: str) -> ServedModel:
    """The model as /server_info and /v1/models describe it; PreflightError when they lack what is needed."""
    try:
        document = _resolved_document(info)
        kind, checkpoint = document["kind"], checkpoint_of(info)
        arguments = {entry["arg"]: entry["value"] for entry in document.get("arguments", ())}
        name = str(models["data"][0]["id"])
        max_model_len = models["data"][0].get("max_model_len")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise PreflightError(
            f"{server} does not describe its model as a megaserve server does ({type(error).__name__}: {error} "
            f"in {INFO_PATH} or {MODELS_PATH}); the answers could not be attributed to a model"
        ) from None
    dtype = arguments.get("dtype")
    return ServedModel(
        identity=model_identity(kind, checkpoint, dtype),
        name=name,
        kind=kind,
        checkpoint=checkpoint,
        dtype=dtype,
        info=info,
        max_model_len=max_model_len if isinstance(max_model_len, int) else None,
    )


def _resolved_document(info: Any) -> Any:
    """{kind, checkpoint, arguments, ...}: the member `document`, or the body itself where there is no such member."""
    return info.get("document", info)


def checkpoint_of(info: Any) -> dict[str, Any]:
    """{path, format, iteration, digest}: of the resolved document, with what the server adds to it at the top."""
    added = info.get("checkpoint")
    return {**_resolved_document(info)["checkpoint"], **(added if isinstance(added, dict) else {})}


async def _described(session: aiohttp.ClientSession, server: str, max_wait: float) -> Any:
    """What /server_info answers, once the digest of the weights is known: a server says null while it reads them."""
    deadline = time.monotonic() + max_wait
    while True:
        info = await _get_json(session, server + INFO_PATH)
        if not awaits_digest(info):
            return info
        if time.monotonic() > deadline:
            raise PreflightError(f"{server} does not know the digest of its weights after {max_wait:g} seconds")
        await asyncio.sleep(PROBE_INTERVAL_SECONDS)


def awaits_digest(info: Any) -> bool:
    """Whether the digest of the weights is still being computed."""
    try:
        return checkpoint_of(info).get("digest", "") is None
    except (KeyError, TypeError, AttributeError):
        return False  # `served_model` says what is wrong with it


def model_identity(kind: str, checkpoint: dict[str, Any], dtype: str | None) -> str:
    """Digest of what tells two models apart: the checkpoint's content where the server states its digest, else its
    path; with kind, iteration and dtype."""
    content = checkpoint.get("digest") or checkpoint.get("path")
    return sha256_json({"kind": kind, "content": content, "iteration": checkpoint.get("iteration"), "dtype": dtype})


async def check_likelihoods(server: str, api_key: str | None) -> None:
    """PreflightError unless the server gives log-probabilities of a prompt's own tokens: one that ignores the request
    for them would be scored at chance."""
    request = prompt_tokens_request("One two", (), start=0)
    async with open_session(api_key) as session:
        try:
            async with session.post(
                server + request.path,
                data=request.encode("preflight"),
                headers={"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS),
            ) as response:
                data = await response.read()
                reply = request.parse(json.loads(data)) if response.status == 200 else None
                message = reply.message if isinstance(reply, Failure) else data[:300].decode("utf-8", "replace")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise PreflightError(f"{server}{request.path}: {error or type(error).__name__}") from None
    if not isinstance(reply, PromptTokens):
        raise PreflightError(
            f"{server} gives no log-probabilities of a prompt, which this request type needs: {message}"
        )


async def _wait_until_ready(session: aiohttp.ClientSession, server: str, max_wait: float) -> None:
    """A server that listens but still loads is waited for; one that does not listen is an error at once."""
    deadline = time.monotonic() + max_wait
    while (reason := await probe_ready(session, server)) is not None:
        if time.monotonic() > deadline:
            raise PreflightError(f"{server} was not ready within {max_wait:g} seconds: {reason}")
        await asyncio.sleep(PROBE_INTERVAL_SECONDS)


async def _get_json(session: aiohttp.ClientSession, url: str) -> Any:
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_SECONDS)
    async with session.get(url, timeout=timeout) as response:
        data = await response.read()
        if response.status in (401, 403):
            raise AuthenticationError(f"{url} answers {response.status}: the server refuses this client; see --api-key")
        if response.status != 200:
            raise PreflightError(f"{url} answers {response.status}; is this a megaserve server?")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise PreflightError(f"{url} does not answer JSON; is this a megaserve server?") from None
