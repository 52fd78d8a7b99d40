"""Running a command so that its end and its exit code stand in its own output.

An engine says that a command ended when nobody holds its output any more, which may be a child that it left behind.
So a shell waits for the command itself and closes both of its streams with a mark that holds its exit code.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

# $1: the token; $2: a directory, or empty; $3: what to do; then its arguments. The shell outlives a TERM, so that it
# can tell how its command ended; the command itself is not protected. Its own remarks are not the command's output.
_WRAP = r"""
token=$1 directory=$2 how=$3
shift 3
exec 3>&2 2>/dev/null
trap : HUP INT TERM
end() {
  printf '\036%s %s\036' "$token" "$1"
  printf '\036%s %s\036' "$token" "$1" >&3
  exit "$2"
}
if [ -n "$directory" ]; then cd -- "$directory" || end directory 126; fi
case $how in
input) (exec 2>&3 3>&-; exec "$@") ;;
background)
  log=$1
  shift
  command -v -- "$1" >/dev/null || end 127 127
  case $log in */*) mkdir -p -- "${log%/*}/" || end log 126 ;; esac
  true >>"$log" || end log 126
  (exec >>"$log" 2>&1 3>&- </dev/null; exec "$@") &
  ;;
*) (exec </dev/null 2>&3 3>&-; exec "$@") ;;
esac
code=$?
end "$code" "$code"
"""

_SEPARATOR = b"\x1e"
_WORD = 9  # "directory" is the longest


def new_token() -> str:
    """What tells one command's closing marks."""
    return secrets.token_hex(12)


def wrap(argv: Sequence[str], token: str, *, cwd: str = "", stdin: bool = False) -> list[str]:
    """`argv` in an absolute directory, its streams closed with marks of `token`."""
    return ["/bin/sh", "-c", _WRAP, "vf-run", token, cwd, "input" if stdin else "plain", *argv]


def wrap_background(argv: Sequence[str], token: str, log: str, *, cwd: str) -> list[str]:
    """Starts `argv` and ends; its output is appended to `log`."""
    return ["/bin/sh", "-c", _WRAP, "vf-run", token, cwd, "background", log, *argv]


class Closing:
    """Takes the closing mark out of one stream."""

    def __init__(self, token: str) -> None:
        self._opening = _SEPARATOR + token.encode() + b" "
        self._mark = re.compile(re.escape(self._opening) + rb"(\d{1,3}|directory|log)\x1e")
        self._held = b""
        self.said: str | None = None

    def feed(self, data: bytes) -> bytes:
        """The command's own output in the next bytes. `said` is set once the mark came; what follows is dropped."""
        if self.said is not None:
            return b""
        data = self._held + data
        self._held = b""
        if found := self._mark.search(data):
            self.said = found[1].decode()
            return data[: found.start()]
        # A beginning of the mark at the end waits for the rest.
        at = data.find(_SEPARATOR, max(0, len(data) - len(self._opening) - _WORD))
        while at >= 0:
            if self._begins(data[at:]):
                self._held = data[at:]
                return data[:at]
            at = data.find(_SEPARATOR, at + 1)
        return data

    def _begins(self, end: bytes) -> bool:
        if self._opening.startswith(end):
            return True
        word = end[len(self._opening) :]
        return end.startswith(self._opening) and (
            (word.isdigit() and len(word) <= 3) or b"directory".startswith(word) or b"log".startswith(word)
        )

    def rest(self) -> bytes:
        """What was held back and turned out to be output."""
        held, self._held = self._held, b""
        return held
