"""What the libraries alone cost: aiohttp's low-level server and its client, reading JSON but recording nothing.

Arguments and output as `serve_ours`. Needs aiohttp.
"""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys

import aiohttp
from aiohttp import web
from pydantic_core import from_json


def usage() -> dict[str, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1024}


async def main() -> None:
    url = sys.argv[1] + "/chat/completions"
    turns = 0
    client = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=512),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        skip_auto_headers=["User-Agent"],
    )

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal turns
        raw = await request.read()
        body = from_json(raw)
        headers = {"Authorization": "Bearer bench-key", "Content-Type": "application/json"}
        async with client.post(url, data=raw, headers=headers) as answer:
            kind = {"Content-Type": answer.headers["Content-Type"]}
            if not body.get("stream"):
                data = await answer.read()
                from_json(data)
                turns += 1
                return web.Response(body=data, status=answer.status, headers=kind)
            response = web.StreamResponse(headers=kind)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                for line in chunk.split(b"\n"):
                    if line.startswith(b"data: {") and line.endswith(b"}"):
                        from_json(line[6:])
                await response.write(chunk)
            await response.write_eof()
            turns += 1
            return response

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    port = runner.addresses[0][1]
    secrets = [f"s{i}" for i in range(int(sys.argv[2]))]
    print(json.dumps({"base_url": f"http://127.0.0.1:{port}/v1", "secrets": secrets, **usage()}), flush=True)
    await stop.wait()
    print(json.dumps({"turns": turns, **usage()}), flush=True)
    await client.close()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
