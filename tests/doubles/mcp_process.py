"""Starting the MCP server double as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class McpProcess:
    """A running server: its process and its endpoint."""

    process: subprocess.Popen[str]
    url: str

    @property
    def spec(self) -> dict[str, str]:
        """Its entry in `mcpServers`."""
        return {"url": self.url}


@contextmanager
def mcp_server(*flags: str) -> Iterator[McpProcess]:
    """A server with these flags (see `mcp_server.py`), ended on leaving."""
    argv = [sys.executable, str(Path(__file__).with_name("mcp_server.py")), *flags]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "the MCP server did not start"
        yield McpProcess(process, f"http://127.0.0.1:{port}/mcp")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
