"""Reading and writing a sandbox's files: small ones with one command, large ones by the provider's transfer."""

from __future__ import annotations

import base64
import posixpath
import shlex
from typing import Final

from vf_core.errors import SandboxError
from vf_core.runtimes import guest
from vf_core.runtimes.prime.client import Executed
from vf_core.runtimes.prime.sdk import CallError
from vf_core.runtimes.prime.shell import Shell

_READ_INLINE: Final = 512 << 10
_READ_CHUNK: Final = 4 << 20
_WRITE_INLINE: Final = 48 << 10
_DIRECTORY, _NOT_A_FILE = 43, 45

# $1: the path. Exit codes as of `guest.read_argv`.
_CHECK: Final = """\
[ -d "$1" ] && exit 43
mkdir -p -- "$2" || exit 1
if [ -e "$1" ] && [ ! -f "$1" ]; then exit 45; fi
"""
_WRITE_SMALL: Final = _CHECK + 'printf %s "$3" | base64 -d >"$1"\n'
# $4: its size, for a transfer whose answer was lost after the file was put in place.
_WRITE_LARGE: Final = (
    _CHECK + 'if [ -e "$3" ]; then cat -- "$3" >"$1" && rm -f -- "$3"\n'
    'else [ "$(wc -c <"$1")" -eq "$4" ]; fi\n'
)


async def read(shell: Shell, path: str, limit: int | None = None) -> bytes:
    """An absolute path's first `limit` bytes (None: all). Errors as `Runtime.read` has them."""
    size, data = await _begin(shell, path, _READ_INLINE if limit is None else min(limit, _READ_INLINE))
    wanted = size if limit is None else min(size, limit)
    if len(data) >= wanted:
        return data[:wanted]
    if limit is None:
        return await shell.insist_on(lambda: shell.client.download(shell.id, path, size), f"read {path}")
    pieces = [data]
    have = len(data)
    while have < wanted:
        piece = await _piece(shell, path, have, min(_READ_CHUNK, wanted - have))
        if not piece:
            break  # it became shorter
        pieces.append(piece)
        have += len(piece)
    return b"".join(pieces)


async def _begin(shell: Shell, path: str, limit: int) -> tuple[int, bytes]:
    """The size of a regular file and its first bytes."""

    def parse(executed: Executed) -> tuple[int, bytes]:
        _raise_for(executed, path)
        first, _, rest = executed.stdout.partition("\n")
        if not first.strip().isdigit():
            raise CallError("garbled", f"read {path}: an incomplete answer")
        return int(first), base64.b64decode(rest)

    check = shlex.join(guest.read_argv(path, 0))
    quoted = shlex.quote(path)
    text = f"{check} || exit $?; wc -c <{quoted} && head -c {limit} -- {quoted} | base64"
    return await shell.insist(text, parse=parse, what=f"read {path}")


async def _piece(shell: Shell, path: str, offset: int, length: int) -> bytes:
    def parse(executed: Executed) -> bytes:
        _raise_for(executed, path)
        return base64.b64decode(executed.stdout)

    text = f"tail -c +{offset + 1} -- {shlex.quote(path)} | head -c {length} | base64"
    return await shell.insist(text, wait=60, parse=parse, what=f"read {path}")


def _raise_for(executed: Executed, path: str) -> None:
    if executed.exit_code > 128:
        raise CallError("garbled", f"read {path}: exit {executed.exit_code}")
    if executed.exit_code != 0:
        raise guest.read_failed(executed.exit_code, path, executed.stderr)


async def write(shell: Shell, path: str, data: bytes) -> None:
    """Make or replace a file at an absolute path. Errors as `Runtime.write` has them."""

    def parse(executed: Executed) -> None:
        if executed.exit_code > 128:
            raise CallError("garbled", f"write {path}: exit {executed.exit_code}")
        if executed.exit_code in (_DIRECTORY, _NOT_A_FILE):
            raise guest.read_failed(executed.exit_code, path)
        if executed.exit_code != 0:
            raise SandboxError(f"{path} cannot be written: {executed.stderr.strip()[-300:]}")

    what = f"write {path}"
    parent = posixpath.dirname(path) or "/"
    if len(data) <= _WRITE_INLINE:
        encoded = base64.b64encode(data).decode()
        text = shlex.join(["sh", "-c", _WRITE_SMALL, "vf-write", path, parent, encoded])
        await shell.insist(text, parse=parse, what=what)
        return
    passing = shell.new_path(".part")
    await shell.insist_on(lambda: shell.client.upload(shell.id, passing, data), what)
    text = shlex.join(["sh", "-c", _WRITE_LARGE, "vf-write", path, parent, passing, str(len(data))])
    await shell.insist(text, wait=60, parse=parse, what=what)
