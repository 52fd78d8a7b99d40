"""A process that opens a Prime tunnel as an engine does, says which process holds it, and waits to be killed."""

from __future__ import annotations

import asyncio
import sys

from vf_core.config.interception import PrimeTunnelConfig
from vf_core.interception import InterceptionServer, Upstream
from vf_core.interception.tunnel.prime import PrimeTunnel


async def main() -> None:
    tunnel = PrimeTunnel(PrimeTunnelConfig(), run="run-1")
    async with InterceptionServer(Upstream("http://127.0.0.1:9/v1"), tunnel=tunnel):
        assert tunnel._helper is not None
        print(tunnel._helper.pid, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
