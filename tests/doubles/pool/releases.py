"""A server of pool releases whose program is the stand-in, and which can serve them badly.

`python tests/doubles/pool/releases.py [PORT]` serves good ones until it is ended, and prints their address.
"""

from __future__ import annotations

import io
import os
import platform
import shutil
import sys
import tarfile
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
NAME = f"pool-{platform.system().lower()}-{ARCHITECTURE}"
# A new enough Python at the same place on this host and in the tests' images.
PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def stand_in() -> bytes:
    """The stand-in, as a program."""
    source = Path(__file__).with_name("program.py").read_bytes()
    return f"#!{PYTHON} -I\n".encode() + source


def archive(name: str = NAME, program: bytes | None = None) -> bytes:
    """A release's archive; its owner is one that the installing machine need not know."""
    data = stand_in() if program is None else program
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.uid, info.gid = len(data), 0o6755, 501, 20
        tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


class Releases:
    """Serves archives under `/releases/v<version>/`. `kind` says how:

    `good`; `bad` (not an archive); `half` (cut off in the middle); `missing` (404); `slow` (half of it, the rest when
    `go` is set). `body` replaces what is served. `downloads` counts requests by path; `began` is set with the first.
    """

    def __init__(self, kind: str = "good", body: bytes | None = None, port: int = 0) -> None:
        self.kind, self.body = kind, body if body is not None else archive()
        self.downloads: Counter[str] = Counter()
        self.logins: set[str] = set()
        self.began, self.go = threading.Event(), threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self.base = f"http://127.0.0.1:{self._server.server_address[1]}/releases"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def count(self) -> int:
        """All downloads."""
        return sum(self.downloads.values())

    def __enter__(self) -> Releases:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.go.set()
        self._server.shutdown()
        self._server.server_close()

    def serve(self) -> None:
        """Until interrupted."""
        self._server.serve_forever()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                outer._answer(self)

        return Handler

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        self.downloads[request.path] += 1
        self.logins.add(request.headers.get("Authorization", ""))
        if self.kind == "missing" or not request.path.endswith(f"/{NAME}.tar.gz"):
            request.send_error(404)
            return
        body = b"<html>sign in first</html>" if self.kind == "bad" else self.body
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        half = len(body) // 2
        request.wfile.write(body[:half])
        self.began.set()
        if self.kind == "half":
            return
        if self.kind == "slow":
            self.go.wait(120)
        try:
            request.wfile.write(body[half:])
        except OSError:
            pass  # the downloading program was killed


def remove(version: str) -> None:
    """What a test installed."""
    shutil.rmtree(f"/tmp/vf-pool-{version}", ignore_errors=True)


if __name__ == "__main__":
    server = Releases(port=int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(server.base, flush=True)
    server.serve()
