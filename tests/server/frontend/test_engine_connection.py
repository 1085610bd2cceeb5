"""What the frontend makes of the ranks' messages."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import zmq.asyncio

from server.frontend.engine_connection import EngineConnection
from server.ipc import EngineStats, Heartbeat


def test_sequences_that_wait_for_their_grammar_alone_are_no_stall(tmp_path: Path) -> None:
    async def stall_after(stats: EngineStats) -> str | None:
        context = zmq.asyncio.Context()
        connection = EngineConnection(context, tmp_path / "socket", lambda outputs: None, lambda steps: None)
        try:
            connection._last_progress_time = time.monotonic() - 1000
            connection._handle(Heartbeat(stats))
            return connection.stall(60)
        finally:
            await connection.close()
            context.destroy(linger=0)

    assert asyncio.run(stall_after(EngineStats(num_waiting=1, num_compiling=1))) is None
    assert "2 sequences wait" in (asyncio.run(stall_after(EngineStats(num_waiting=2, num_compiling=1))) or "")
