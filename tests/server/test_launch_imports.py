"""The HTTP process's modules, from the inside."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from server.config import ResolvedDocument

PROGRAM = """
import asyncio, sys
from pathlib import Path
import server.cli, server.launch, server.launch_http
from server.api.app import create_app
from server.api.context import ServerContext
from server.config import ResolvedDocument, ServerConfig
from server.frontend.engine_client import EngineClient

async def chat(document):
    config = ServerConfig.from_values(document.values)
    tokenizer = server.launch_http.load_tokenizer(document, config)
    context = ServerContext(document, config, tokenizer, EngineClient(1, 1.0))
    create_app(context)
    token_ids = await context.encode_chat([{"role": "user", "content": "hi <|im_end|>"}])
    context.detokenizers.create(token_ids, skip_special_tokens=True).push(token_ids[0])

asyncio.run(chat(ResolvedDocument.read(Path(sys.argv[1]))))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "megatron", "numba", "tensorflow"}))
"""


def test_neither_torch_nor_megatron(make_document: Callable[..., ResolvedDocument], tmp_path: Path) -> None:
    file = tmp_path / "document.json"
    file.write_bytes(make_document().to_json())
    command = [sys.executable, "-c", PROGRAM, str(file)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
