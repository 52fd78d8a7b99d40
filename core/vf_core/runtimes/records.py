"""Where local sandboxes live on disk, and what is written down of each before it exists.

A private directory of this user (mode 0700, under the temporary directory, with a name that nobody can take first)
holds, for each sandbox, its working directory `<id>/` and beside it `<id>.json`: what is needed to find what is left
of it after its engine was killed. Both go when it is proven gone.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vf_core.errors import SandboxError
from vf_core.runtimes.identity import engine
from vf_core.runtimes.liveness import here

RECORD_VERSION = 1
# Prepared programs, where the user's cache cannot hold them.
SCRIPTS = "scripts"


@dataclass(frozen=True, slots=True)
class Record:
    """A local sandbox on disk. `pid`, `start`, `boot` and `space` are its engine's; `token` is what its processes
    carry in `VF_TUI_ENGINE`, `id` in `VF_TUI_SANDBOX`. `created` is Unix time in seconds."""

    id: str
    name: str
    run: str
    directory: str
    pid: int
    start: int
    boot: str
    host: str
    token: str
    created: float
    labels: Mapping[str, str] = field(default_factory=dict)
    space: str = ""
    version: int = RECORD_VERSION


_FIELDS = tuple(Record.__dataclass_fields__)


def _prefix() -> str:
    return f"vf-tui-box-{os.geteuid()}-"


def roots(tmp: Path | None = None) -> list[Path]:
    """The private directories of this user in `tmp` (by default the temporary directory): ours, entered by nobody
    else. Usually one or none."""
    tmp = tmp or _tmp()
    try:
        names = sorted(name for name in os.listdir(tmp) if name.startswith(_prefix()))
    except OSError:
        return []
    return [tmp / name for name in names if _is_private(tmp / name)]


def _tmp() -> Path:
    # Processes are shown with the real path of their working directory.
    return Path(os.path.realpath(tempfile.gettempdir()))


def _is_private(path: Path) -> bool:
    try:
        info = path.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not stat.S_IMODE(info.st_mode) & 0o077
    )


_root: Path | None = None


def private_root() -> Path:
    """The directory for new sandboxes, made if need be. Raises `SandboxError` when it cannot be."""
    global _root  # noqa: PLW0603 - found once a process
    if _root is None or _root.parent != _tmp() or not _is_private(_root):
        existing = roots()
        try:
            _root = existing[0] if existing else Path(tempfile.mkdtemp(prefix=_prefix(), dir=_tmp()))
        except OSError as e:
            raise SandboxError(
                f"no directory for local sandboxes in {tempfile.gettempdir()}: {e.strerror or e}",
                hint="make room there, or point TMPDIR elsewhere",
            ) from e
    return _root


def _leave_root() -> None:
    """At exit: the directory goes with the last sandbox in it."""
    if _root is None:
        return
    with contextlib.suppress(OSError):
        if os.listdir(_root) == [SCRIPTS]:
            shutil.rmtree(_root / SCRIPTS, ignore_errors=True)
        os.rmdir(_root)


atexit.register(_leave_root)


def create(id: str, name: str, labels: Mapping[str, str]) -> Record:
    """Write down a sandbox, then make its directory (0700). Raises `SandboxError`; what was made is then gone."""
    try:
        return _create(id, name, labels)
    except FileNotFoundError:
        return _create(id, name, labels)  # another process of ours just left the empty root


def _create(id: str, name: str, labels: Mapping[str, str]) -> Record:
    root = private_root()
    me = engine()
    directory = root / id
    record = Record(
        id=id,
        name=name,
        run=labels.get("run", ""),
        directory=str(directory),
        pid=me.pid,
        start=me.start,
        boot=me.boot,
        host=me.host,
        token=me.token,
        created=time.time(),
        labels=dict(labels),
        space=here().space,
    )
    path = _path(directory)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(fd, json.dumps({name: getattr(record, name) for name in _FIELDS}).encode())
        finally:
            os.close(fd)
        os.mkdir(directory, 0o700)
    except FileNotFoundError:
        raise
    except OSError as e:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise SandboxError(f"directory {directory} cannot be made: {e.strerror or e}") from e
    return record


def _path(directory: Path) -> str:
    return f"{directory}.json"


def forget(record: Record) -> None:
    """Its end is proven."""
    with contextlib.suppress(OSError):
        os.unlink(_path(Path(record.directory)))


def read_records(places: Iterable[Path] | None = None) -> Iterator[Record]:
    """All sandboxes of this user that are written down in `places` (by default `roots()`), of live and dead engines.

    A record that cannot be read (torn by a crash) is passed over; its directory stands beside it.
    """
    for root in roots() if places is None else places:
        for path in sorted(root.glob("*.json")):
            try:
                yield _parse(json.loads(path.read_bytes()))
            except (OSError, ValueError, TypeError):
                continue


def _parse(data: dict[str, Any]) -> Record:
    return Record(**{key: value for key, value in data.items() if key in _FIELDS})


def remove_tree(path: str) -> str:
    """Remove a directory and all in it, also what is not writable; what stands in the way, or empty when it is gone.

    May take long: not for the event loop.
    """
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return ""
    except OSError:
        pass  # it is not empty
    else:
        return ""
    shutil.rmtree(path, ignore_errors=True)
    if not os.path.lexists(path):
        return ""
    with contextlib.suppress(OSError):
        os.chmod(path, 0o700)
    for above, names, _ in os.walk(path):
        for below in (os.path.join(above, name) for name in names):
            if not os.path.islink(below):
                with contextlib.suppress(OSError):
                    os.chmod(below, 0o700)
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as e:
        return f"{e.filename or path}: {e.strerror or e}"
    return ""
