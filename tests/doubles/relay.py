"""A TCP relay as a process of its own: what a user's tunnel is to the interception server.

`python relay.py LISTEN_HOST LISTEN_PORT TARGET_PORT` prints `up PORT`, and carries connections until it is killed.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def _main(host: str, port: int, target: int) -> None:
    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pipe(reader, far_writer), _pipe(far_reader, writer))

    server = await asyncio.start_server(carry, host, port)
    print("up", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Relay:
    """A running relay; `kill` and `start` it again as the test likes, on the same port."""

    def __init__(self, target: int, host: str = "127.0.0.1") -> None:
        self.target, self.host, self.port = target, host, 0
        self._popen: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.host}:{self.port}"

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        self._popen = subprocess.Popen(
            [sys.executable, "-I", __file__, self.host, str(self.port), str(self.target)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._popen.stdout is not None
        line = await asyncio.to_thread(self._popen.stdout.readline)
        self.port = int(line.split()[1])

    def kill(self) -> None:
        """Kill it: every connection through it breaks."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
            if self._popen.stdout is not None:
                self._popen.stdout.close()
            self._popen = None

    async def __aenter__(self) -> Relay:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.kill()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
