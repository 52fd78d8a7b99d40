"""Stands in for frpc: `frpc -c FILE`. Logs in at the service's double, and carries connections to the local port.

It keeps to what `prime-tunnel` relies on: the config file's keys, the log lines on stdout, and ending on SIGTERM.
`FRPC_FAULT`: stubborn (ignores SIGTERM), silent (never says that it is connected), crash (ends at once).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import tomllib
from typing import Any


def log(level: str, text: str) -> None:
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    print(f"\x1b[1;34m{now}.000 [{level}] [client/control.go:1] [abc] {text}\x1b[0m", flush=True)


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def carry(config: dict[str, Any], ticket: str) -> None:
    """One connection from outside: dial both ends and pass bytes on."""
    proxy = config["proxies"][0]
    far = await asyncio.open_connection(config["serverAddr"], config["serverPort"])
    far[1].write(f"carry {ticket}\n".encode())
    try:
        near = await asyncio.open_connection(proxy["localIP"], proxy["localPort"])
    except OSError as e:
        log("W", f"connect to local service error: {e}")
        far[1].close()
        return
    await asyncio.gather(pipe(far[0], near[1]), pipe(near[0], far[1]))


async def main(path: str) -> int:
    with open(path, "rb") as f:
        config = tomllib.load(f)
    fault = os.environ.get("FRPC_FAULT", "")
    if fault == "crash":
        log("E", "something is wrong with this build")
        return 1
    name, secret = config["user"], config["metadatas"]["binding_secret"]
    try:
        reader, writer = await asyncio.open_connection(config["serverAddr"], config["serverPort"])
    except OSError as e:
        log("W", f"connect to server error: {e}")
        return 1
    writer.write(f"login {name} {config['auth']['token']} {secret}\n".encode())
    tasks: set[asyncio.Task[None]] = set()
    while line := (await reader.readline()).decode().strip():
        word, _, rest = line.partition(" ")
        if word == "ok" and fault != "silent":
            log("I", f"[{name}] start proxy success")
        elif word == "refused":
            log("E", f"connect to server error: {rest}")
        elif word == "carry":
            task = asyncio.create_task(carry(config, rest))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    log("W", "the connection to the server was lost")
    return 1


if __name__ == "__main__":
    if os.environ.get("FRPC_FAULT") == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.argv[1:2] != ["-c"]:
        sys.exit("usage: frpc -c FILE")
    sys.exit(asyncio.run(main(sys.argv[2])))
