"""Where this user's settings, state, caches and sockets live."""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from vf_core.errors import ConfigError

APP = "vf-tui"
# A unix socket's path has 104 bytes on macOS and 108 on Linux, its closing zero included.
SOCKET_PATH_LIMIT = 100
SOCKET_NAME_LIMIT = 32

logger = logging.getLogger(__name__)


def config_dir() -> Path:
    """Settings: `config.toml`, `keys.toml`, `themes/`. Not created."""
    return _xdg("XDG_CONFIG_HOME", ".config")


def state_dir() -> Path:
    """What must survive: the index of runs, logs. Not created; make it with `private_dir`."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def cache_dir() -> Path:
    """What can be made again. Not created; make it with `private_dir`."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def runtime_dir() -> Path:
    """A private directory (0700, ours, no symlink) for sockets; it exists when this returns.

    A socket name of up to `SOCKET_NAME_LIMIT` bytes fits behind it. A fallback is logged as a warning. Raises
    `ConfigError` when no place is private and short enough.
    """
    found = find_runtime_dir()
    if found.notice:
        logger.warning(found.notice)
    return found.path


@dataclass(frozen=True, slots=True)
class RuntimeDir:
    """Where sockets go; `notice` says why the usual place was not taken (empty: it was)."""

    path: Path
    notice: str = ""


def find_runtime_dir() -> RuntimeDir:
    """As `runtime_dir`, with the notice beside the path instead of in the log."""
    refused: list[str] = []
    for path in _runtime_candidates():
        if len(os.fsencode(path)) + 1 + SOCKET_NAME_LIMIT > SOCKET_PATH_LIMIT:
            refused.append(f"{path} is too long for a socket's path")
            continue
        problem = _make_private(path)
        if not problem:
            return RuntimeDir(path, f"sockets go to {path}: {'; '.join(refused)}" if refused else "")
        refused.append(problem)
    try:
        last = Path(tempfile.mkdtemp(prefix=f"{APP}-{os.geteuid()}-", dir=_short_tmp()))
    except OSError as e:
        refused.append(f"{_short_tmp()}: {e.strerror or e}")
        raise ConfigError(
            f"no private directory for sockets: {'; '.join(refused)}",
            hint="set XDG_RUNTIME_DIR to a short directory of yours with mode 0700",
        ) from e
    return RuntimeDir(last, f"sockets go to {last}: {'; '.join(refused)}")


def path_of(text: str) -> Path:
    """The path that a config's `text` names: its bytes are UTF-8 on the disk too, whatever the locale."""
    return Path(os.fsdecode(text.encode("utf-8", "surrogateescape")))


def text_of(path: Path) -> str:
    """`path` as a config's text: the way back of `path_of`. Raises `ConfigError` for one that is not UTF-8."""
    try:
        return os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(
            f"the path {os.fspath(path)!a} is not UTF-8", hint="use a directory with another name"
        ) from None


def private_dir(path: Path) -> Path:
    """`path` as a directory of ours that nobody else can enter (0700), made if need be.

    Raises `ConfigError` when it is a symlink, a file, somebody else's, or cannot be made.
    """
    problem = _make_private(path)
    if problem:
        raise ConfigError(problem, hint="move it away, or choose another place")
    return path


def _xdg(variable: str, default: str) -> Path:
    given = os.environ.get(variable, "")
    # A relative value must be ignored (XDG base directory specification).
    base = Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~")) / default
    return base / APP


def _runtime_candidates() -> list[Path]:
    candidates = []
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(given) and os.path.isdir(given):
        candidates.append(Path(given) / APP)
    candidates.append(Path(_short_tmp()) / f"{APP}-{os.geteuid()}")
    candidates.append(state_dir() / "sockets")
    return candidates


def _short_tmp() -> str:
    tmp = tempfile.gettempdir()
    return tmp if len(os.fsencode(tmp)) <= 48 else "/tmp"  # noqa: S108 - what is made in it is checked


def _make_private(path: Path) -> str:
    """Make `path` private; the reason why it is not, if that fails."""
    try:
        # `Path.mkdir(parents=True)` would give the parents the umask's mode.
        for missing in reversed([path, *path.parents]):
            if not os.path.lexists(missing):
                missing.mkdir(mode=0o700, exist_ok=True)
        info = path.lstat()
    except OSError as e:
        return f"{path}: {e.strerror or e}"
    if not stat.S_ISDIR(info.st_mode):
        return f"{path} is not a directory"
    if info.st_uid != os.geteuid():
        return f"{path} belongs to user {info.st_uid}"
    if stat.S_IMODE(info.st_mode) & 0o077:
        try:
            path.chmod(0o700)
        except OSError as e:
            return f"{path} is open to others: {e.strerror or e}"
    return ""
