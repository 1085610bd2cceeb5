"""The engine in this process: its rank in a thread, its routes on this thread's event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from evaluation.errors import PreflightError, ServerLostError
from evaluation.offline.asgi_wire import AsgiWire
from evaluation.offline.document import engine_argv, resolved_document
from evaluation.offline.ranks import Ranks
from evaluation.preflight import INFO_PATH, MODELS_PATH, ServedModel, served_model
from model_providers.notices import silence_upstream_notices
from server.api.app import create_app
from server.api.context import ServerContext
from server.config import ResolvedDocument, ServerConfig
from server.errors import ConfigurationError
from server.frontend.engine_client import EngineClient
from server.launch import private_directory
from server.launch_http import load_tokenizer, make_image_store

_NAME = "the engine in this process"
_SOCKET = "engine.sock"
_DIGEST = "digest"
_POLL_SECONDS = 0.05
_STOP_TIMEOUT_SECONDS = 30.0


class EngineGate:
    """Open until the engine has failed; nothing in this process would start it again."""

    def __init__(self) -> None:
        self.failure: str | None = None

    async def wait(self) -> None:
        """Raises ServerLostError once the engine has failed."""
        if self.failure is not None:
            raise ServerLostError(f"the engine failed: {self.failure}")

    def suspect(self) -> None:
        """The engine says itself when it has failed."""


class OfflineEngine:
    """A checkpoint's engine on this rank. Under torchrun every rank makes one with the same arguments.

    arguments: as `megaserve serve` takes them, such as "--dtype", "fp32". tensor_model_parallel_size: ranks that share
    one replica. rank_timeout: seconds to wait for another rank. Used as a context manager: entering resolves the
    arguments, `load` starts the ranks, leaving ends them. Raises SetupError for what does not allow a start.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        *arguments: str,
        tensor_model_parallel_size: int = 1,
        rank_timeout: float = 1800.0,
    ) -> None:
        self._argv = engine_argv(str(checkpoint), tensor_model_parallel_size, arguments)
        self.ranks = Ranks.of_environment(tensor_model_parallel_size, rank_timeout)
        self.gate = EngineGate()
        self._rank_timeout = rank_timeout
        self._exit = ExitStack()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        try:
            self._directory = self._exit.enter_context(private_directory())
            document = resolved_document(self.ranks, self._argv, self._directory / "document.json")
            self._runner = self._exit.enter_context(asyncio.Runner())
            if self.ranks.is_leader:
                self._serve(document)
        except ConfigurationError as error:
            self.ranks.give_up(str(error))
            self._exit.close()
            raise PreflightError(str(error)) from None
        except BaseException as error:
            self.ranks.give_up(str(error))
            self._exit.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.ranks.give_up(str(error) or type(error).__name__)
        with self._exit:
            if self._thread is not None:
                self.run(self._stop())
        self.ranks.leave()

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's event loop."""
        return self._runner.run(work)

    def load(self) -> None:
        """Load the model, on all ranks. Raises PreflightError with the reason when that fails."""
        if self._thread is None:
            silence_upstream_notices()
            self.ranks.join_replica()
            self.run(self._start())

    def _serve(self, document: ResolvedDocument) -> None:
        config = ServerConfig.from_values(document.values)
        images = make_image_store(document, config, self._directory)
        if images is not None:
            self._exit.callback(images.close)
        self._client = EngineClient(config.max_queued_requests, max_silence=config.progress_timeout)
        self._exit.callback(self._client.terminate)
        context = ServerContext(document, config, load_tokenizer(document, config), self._client, images)
        self.wire = AsgiWire(create_app(context), _NAME)
        self.model = self.run(self._described(context))

    async def _described(self, context: ServerContext) -> ServedModel:
        """The model, its weights' digest included, which rank 0 reads for all."""
        if self.ranks.is_first:
            context.checkpoint_digest.start()
            self._exit.callback(context.checkpoint_digest.stop)
            await self._digest_known(context)
            self.ranks.publish(_DIGEST, context.checkpoint_digest.value or "")
        context.checkpoint_digest.value = self.ranks.receive(_DIGEST)
        info, models = await self.wire.get_json(INFO_PATH), await self.wire.get_json(MODELS_PATH)
        return served_model(info, models, _NAME)

    async def _digest_known(self, context: ServerContext) -> None:
        deadline = time.monotonic() + self._rank_timeout
        while context.checkpoint_digest.value is None:
            if time.monotonic() > deadline:
                raise PreflightError(f"the checkpoint's digest is not known after {self._rank_timeout:g} seconds")
            await asyncio.sleep(_POLL_SECONDS)

    async def _start(self) -> None:
        from server.engine.rank import run_rank

        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        paths = (self._directory / "document.json", self._directory / _SOCKET) if self.ranks.is_leader else (None, None)

        def work() -> None:
            status = run_rank(*paths)
            loop.call_soon_threadsafe(ended.set_result, f"the engine's thread ended with status {status}")

        self._thread = threading.Thread(target=work, name="engine", daemon=True)
        self._ended = ended
        if not self.ranks.is_leader:
            self._thread.start()
            return
        connection = self._client.open(self._directory / _SOCKET)
        self._thread.start()
        outcomes: set[asyncio.Future[Any]] = {connection.ready, connection.failed, ended}
        await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
        if not connection.ready.done():
            self.gate.failure = (connection.failed if connection.failed.done() else ended).result()
            raise PreflightError(self.gate.failure)
        self._client.mark_ready(connection.ready.result())
        self._watch = asyncio.create_task(self._fail_with(connection.failed))

    async def _fail_with(self, failed: asyncio.Future[str]) -> None:
        """Answer everybody with an error once the engine has failed, and keep new questions away."""
        await asyncio.wait({failed, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        self.gate.failure = (failed if failed.done() else self._ended).result()
        await self._client.close(self.gate.failure)

    async def _stop(self) -> None:
        """End the ranks in order. One that hangs is left to the end of the process: its thread is a daemon."""
        if self.ranks.is_leader and self.gate.failure is None:
            self._watch.cancel()
            self._client.request_shutdown()
        # A follower is told by its leader, who may have questions left.
        await asyncio.wait({self._ended}, timeout=_STOP_TIMEOUT_SECONDS if self.ranks.is_leader else None)
        if self.ranks.is_leader:
            await self._client.close("the evaluation has ended", stopping=True)
