"""The HTTP process once its arguments are known: uvicorn, the supervisor, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from image_preprocessing.limits import ImageLimits
from image_preprocessing.settings import ImageSettings
from server.api.context import ServerContext
from server.config import ResolvedDocument, ServerConfig
from server.errors import EngineUnavailableError
from server.frontend.engine_client import EngineClient
from server.frontend.image_store import ImageStore
from server.frontend.tokenizer import PromptTokenizer
from server.launch_listener import url_of
from server.launch_uvicorn import HttpServer, uvicorn_config
from server.supervisor import StartFailedError, StartGroup, Supervisor

if TYPE_CHECKING:
    from server.frontend.remote_images import RemoteImages

logger = logging.getLogger(__name__)


def run_http(document: ResolvedDocument, listener: socket.socket, run_directory: Path, start_group: StartGroup) -> int:
    """Serve until a signal or until the ranks cannot be started; the exit status. Raises ConfigurationError."""
    config = ServerConfig.from_values(document.values)
    tokenizer = load_tokenizer(document, config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(document, config, tokenizer, listener, run_directory, start_group))


def load_tokenizer(document: ResolvedDocument, config: ServerConfig) -> PromptTokenizer:
    """The tokenizer that resolution found. Raises ConfigurationError."""
    template = Path(config.chat_template) if config.chat_template is not None else None
    return PromptTokenizer.load(Path(document.values["tokenizer_model"]), template)


async def _serve(
    document: ResolvedDocument,
    config: ServerConfig,
    tokenizer: PromptTokenizer,
    listener: socket.socket,
    run_directory: Path,
    start_group: StartGroup,
) -> int:
    client = EngineClient(config.max_queued_requests, max_silence=config.progress_timeout / 2)
    images = make_image_store(document, config, run_directory)
    remote_images = _remote_images(config)
    context = ServerContext(document, config, tokenizer, client, images, remote_images)
    server = HttpServer(uvicorn_config(context))
    supervisor = Supervisor(client, start_group, run_directory, config)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    supervising = asyncio.create_task(supervisor.run())
    digesting = asyncio.create_task(_digest_once_ready(context))
    stopping = asyncio.create_task(stop.wait())
    logger.info("answering on %s; the ranks are loading", url_of(listener, is_tls=config.ssl_certfile is not None))
    await asyncio.wait({serving, supervising, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    digesting.cancel()
    context.checkpoint_digest.stop()
    if not supervising.done():
        await _drain(client, config.drain_timeout)
    supervisor.stop()
    server.should_exit = True
    outcomes = await asyncio.gather(serving, supervising, return_exceptions=True)
    client.terminate()
    if images is not None:
        images.close()
    if remote_images is not None:
        await remote_images.close()
    return _exit_status(*outcomes)


def make_image_store(document: ResolvedDocument, config: ServerConfig, run_directory: Path) -> ImageStore | None:
    """For a model that sees. Raises ConfigurationError when its arguments describe no preprocessing."""
    if document.kind != "vlm":
        return None
    directory = run_directory / "images"
    directory.mkdir()
    limits = ImageLimits(max_bytes=int(config.max_image_mb * 2**20), max_pixels=config.max_image_pixels)
    return ImageStore(
        ImageSettings.from_values(document.values),
        limits,
        directory,
        max_bytes=int(config.image_store_mb * 2**20),
        num_workers=config.image_workers or len(os.sched_getaffinity(0)),
    )


def _remote_images(config: ServerConfig) -> RemoteImages | None:
    if not config.allow_remote_images:
        return None
    from server.frontend.remote_images import RemoteImages  # a tenth of a second of imports, for few

    max_bytes = int(config.max_image_mb * 2**20)
    return RemoteImages(config.allow_remote_images, max_bytes, config.remote_image_timeout)


async def _digest_once_ready(context: ServerContext) -> None:
    """Not before: while the ranks load, the files and the processors are theirs."""
    await context.client.was_ready.wait()
    context.checkpoint_digest.start()


async def _drain(client: EngineClient, seconds: float) -> None:
    """Refuse new requests, let running ones finish, and answer the rest with an error after `seconds`."""
    client.start_draining()
    logger.info("stopping: %d sequences get up to %g s to finish", client.num_in_flight, seconds)
    await _until(lambda: client.num_in_flight == 0, seconds)
    client.fail_pending(EngineUnavailableError("the server was stopped before this request was finished"))


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  # polled once, at the end of the process's life
                await asyncio.sleep(0.05)


def _exit_status(serving: BaseException | None, supervising: BaseException | None) -> int:
    """1 when the HTTP server or the supervisor ended with an exception, which is logged."""
    if serving is not None:
        logger.error("the HTTP server failed", exc_info=serving)
    if isinstance(supervising, StartFailedError):
        logger.error("%s", supervising)
    elif supervising is not None:
        logger.error("the supervisor failed", exc_info=supervising)
    return int(serving is not None or supervising is not None)
