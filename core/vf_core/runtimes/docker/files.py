"""Files of a container, by commands in it: as its own user sees them, at the same paths as its programs."""

from __future__ import annotations

from typing import Final

from vf_core.errors import SandboxError, SandboxFileNotFoundError, SandboxIsADirectoryError

DIRECTORY: Final = 43
_NOT_A_FILE, _NO_PLACE, _NOT_WRITTEN, _NOT_A_DIRECTORY = 45, 47, 48, 49

# $1: an absolute path; $2: how many bytes come. They are taken whatever happens: some engines drop a command's output
# when it leaves input behind.
_WRITE: Final = """
path=$1 size=$2
refuse() { head -c "$size" >/dev/null; exit "$1"; }
[ -d "$path" ] && refuse 43
if [ -e "$path" ] && [ ! -f "$path" ]; then refuse 45; fi
above=${path%/*}/
if [ ! -d "$above" ]; then
  mkdir -p -- "$above" || {
    while [ ! -e "$above" ]; do above=${above%/*}; done
    [ -d "$above" ] && refuse 47
    refuse 49
  }
fi
true >"$path" || refuse 48
[ "$size" -eq 0 ] && exit 0
head -c "$size" | {
  cat >"$path"
  cat >/dev/null
}
[ "$(wc -c <"$path")" -eq "$size" ] || exit 48
"""


def write_argv(path: str, size: int) -> list[str]:
    """Makes or replaces a file with `size` bytes of its input; see `write_failed` for its exit codes."""
    return ["sh", "-c", _WRITE, "vf-write", path, str(size)]


def write_failed(code: int, path: str, stderr: str) -> SandboxError:
    """What a `write_argv` command's exit code other than 0 says."""
    if code == DIRECTORY:
        return SandboxIsADirectoryError(f"{path} is a directory")
    if code == _NOT_A_DIRECTORY:
        return SandboxFileNotFoundError(f"{path}: a file stands where a directory should")
    if code == _NOT_A_FILE:
        return SandboxError(f"{path} is no regular file")
    what = {_NO_PLACE: "its directory cannot be made", _NOT_WRITTEN: "it cannot be written"}
    return SandboxError(f"{path}: {what.get(code, f'exit {code}')}: {stderr.strip()[-200:]}".rstrip(": "))


def check(path: str) -> None:
    """Raise `SandboxError` for what is no path."""
    if not path or "\0" in path:
        raise SandboxError(f"{path!r} is not a path")
