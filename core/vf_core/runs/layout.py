"""The run directory: which file is where, and how one is made so that nothing is ever overwritten.

Everything made here is private to its user (directories 0700, files 0600, whatever the umask): traces and logs
hold what models and programs said.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from vf_core.errors import RunDirError
from vf_core.text import slug

if TYPE_CHECKING:
    from vf_core.runs.output import OutputLog, OutputThread

_PLAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")


class RunDir:
    """A run's directory at `path`, which need not exist yet. `on_output_error` is told once when the program's
    output cannot be written. `run_id`: where the directory's name is not the run's id."""

    def __init__(
        self,
        path: Path,
        *,
        on_output_error: Callable[[OSError], None] | None = None,
        run_id: str | None = None,
    ) -> None:
        self.path = path.absolute()
        self.on_output_error = on_output_error
        self._run_id = run_id
        self._outputs: OutputThread | None = None

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    @classmethod
    def create(cls, output_dir: Path, run_name: str) -> RunDir:
        """Make `<output_dir>/<run_name>/<uuid>/` with its empty files. Raises `RunDirError`."""
        run = cls(output_dir / slug(run_name, limit=120) / str(uuid.uuid4()))
        try:
            make_private_dirs(run.path.parent)
            # Never one that is there already.
            run.path.mkdir(mode=0o700)
            run.logs.mkdir(mode=0o700)
            for path in (run.traces, run.events, run.engine_log):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as e:
            raise RunDirError(
                f"cannot make the run directory {run.path}: {e.strerror or e}",
                hint="choose another output_dir",
            ) from e
        return run

    @property
    def run_id(self) -> str:
        """The run's id: the directory's name, where it was not given another one."""
        return self._run_id or self.path.name

    @property
    def config(self) -> Path:
        """The resolved config, re-runnable."""
        return self.path / "config.toml"

    @property
    def traces(self) -> Path:
        """One finished rollout a line."""
        return self.path / "traces.jsonl"

    @property
    def events(self) -> Path:
        """The journal."""
        return self.path / "events.jsonl"

    @property
    def engine_json(self) -> Path:
        """Who runs it, and where it stands."""
        return self.path / "engine.json"

    @property
    def logs(self) -> Path:
        """Where logs go."""
        return self.path / "logs"

    @property
    def engine_log(self) -> Path:
        """What the engine logged or printed."""
        return self.logs / "engine.log"

    def stdout_log(self, rollout: str, attempt: int) -> Path:
        """What the program of an attempt wrote to its standard output."""
        return self._log(rollout, attempt, "stdout")

    def stderr_log(self, rollout: str, attempt: int) -> Path:
        """What the program of an attempt wrote to its standard error."""
        return self._log(rollout, attempt, "stderr")

    def output_logs(self, rollout: str, attempt: int) -> dict[str, Path]:
        """Both, by stream name."""
        return {stream: self._log(rollout, attempt, stream) for stream in ("stdout", "stderr")}

    def open_output(self, rollout: str, attempt: int) -> OutputLog:
        """A writer for the output of an attempt; close it. Never raises: what can't be written is dropped and
        told to `on_output_error`."""
        from vf_core.runs.output import OutputLog, OutputThread

        if self._outputs is None or not self._outputs.opened():
            self._outputs = OutputThread(self._output_failed)
            self._outputs.opened()
        return OutputLog(self.output_logs(rollout, attempt), self._outputs)

    def _output_failed(self, error: OSError) -> None:
        if self.on_output_error is not None:
            self.on_output_error(error)

    def _log(self, rollout: str, attempt: int, stream: str) -> Path:
        return self.logs / path_name(rollout) / f"attempt-{attempt}.{stream}.log"


def path_name(text: str) -> str:
    """A directory's name for the id `text`: itself if harmless, else a slug of it and a part of its hash.

    Different ids have different names, on file systems that ignore case too.
    """
    if _PLAIN.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{slug(text, limit=32).lower()}.{digest}"


def make_private_dirs(path: Path) -> None:
    """Make `path` and what is missing above it, each 0700. Raises OSError."""
    for missing in reversed([path, *path.parents]):
        if not os.path.lexists(missing):
            missing.mkdir(mode=0o700, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(20, "not a directory", str(path))


def open_regular(path: Path) -> BinaryIO:
    """The file at `path`, to be read; never a FIFO, which would be waited for, or a device. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(fd, "rb")


def write_private(path: Path, data: bytes) -> None:
    """Replace the file at `path` by `data`, 0600: a reader sees the old one or the new one. Raises OSError."""
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
