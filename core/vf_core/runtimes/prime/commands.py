"""Shell text that runs, follows and ends a command in a sandbox, and what it reports.

A command has a private directory in the sandbox: its output, its pid and its exit code are files there. So nothing
depends on a connection that stays: it is started at most once (making the directory is the test), output is read
from any offset, and bytes come as they are, in base64. In bash, which the
SDK needs as well, with `wc`, `head`, `tail`, `mkfifo` and `base64`.
"""

from __future__ import annotations

import base64
import binascii
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vf_core.runtimes.guest import MARK_VARIABLE
from vf_core.runtimes.prime.client import Executed
from vf_core.runtimes.prime.sdk import CallError, Kind

CHUNK: Final = 1 << 20
NO_DIRECTORY: Final = "cd"
_TOLD: Final = "vf-tui:"

# Becomes the parent of the program. $0: the directory, $1: where to run, $2: the mark, then the program.
_KEEPER: Final = f"""\
W=$1 M=$2; shift 2
over() {{ echo "$1" >"$0/exit~"; mv "$0/exit~" "$0/exit"; echo 1<>"$0/bell"; exit; }}
cd -- "$W" 2>"$0/err" || over {NO_DIRECTORY}
(echo $BASHPID >"$0/pid"; export {MARK_VARIABLE}=$M; exec "$@") >"$0/out" 2>"$0/err"
over $?
"""

_VARIABLES: Final = "J=$1 W=$2 M=$3 P=$4 K=$5 A=$6 B=$7 C=$8 X=$9; shift 9\n"

# $S: `setsid`, or nothing where there is none.
_LAUNCH: Final = """\
S=$1; shift
if (umask 077 && mkdir "$J" && mkfifo "$J/bell") 2>/dev/null; then
  : >"$J/out"; : >"$J/err"
  $S bash -c "$X" "$J" "$W" "$M" "$@" </dev/null >/dev/null 2>&1 &
elif [ ! -d "$J" ]; then
  mkdir "$J"; exit 97
fi
"""

# Until its end, or more than $K bytes of output; $P: how long to nap between two looks. Its end rings the bell.
# Output is looked at by time first: that starts no program.
_WAIT: Final = """\
nap() { sleep "$1" 2>/dev/null || sleep 1; }
[ -p "$J/bell" ] && exec 9<>"$J/bell" && nap() { read -r -t "$1" -u 9 x; }
for s in $P; do
  [ -e "$J/exit" ] && break
  if [ "$K" != - ] && ! { [ "$J/seen" -nt "$J/out" ] && [ "$J/seen" -nt "$J/err" ]; }; then
    : >"$J/seen"
    set -- $(wc -c "$J/out" "$J/err" 2>/dev/null)
    [ "${5:-0}" -gt "$K" ] && break
  fi
  nap "$s"
done
e=-
if [ -e "$J/exit" ]; then e=$(cat "$J/exit"); fi
set -- $(wc -c "$J/out" "$J/err")
o=$1 r=$3
"""

# From offset $A of stdout and $B of stderr, at most $C bytes of each.
_STREAMED: Final = """\
echo "vf-tui: $e $o $r"
if [ "$o" -gt "$A" ]; then tail -c "+$((A + 1))" "$J/out" | head -c "$C" | base64; fi
echo .
if [ "$r" -gt "$B" ]; then tail -c "+$((B + 1))" "$J/err" | head -c "$C" | base64; fi
echo .
"""

# After its end: all of each, or the first $A and the last $B bytes of what is longer than $C.
_ENDS: Final = """\
ends() {
  if [ "$2" -le "$C" ]; then head -c "$2" "$1" | base64
  else head -c "$A" "$1" | base64; echo ,; head -c "$2" "$1" | tail -c "$B" | base64; fi
  echo .
}
echo "vf-tui: $e $o $r"
if [ "$e" != - ]; then ends "$J/out" "$o"; ends "$J/err" "$r"; fi
"""

# Prevents its start, or ends it with all that carries its mark: then the killing command's own exit code.
_END: Final = """\
J=$1; shift
if mkdir "$J" 2>/dev/null; then : >"$J/out"; : >"$J/err"; echo 137 >"$J/exit"; exit 0; fi
n=0
while [ ! -s "$J/pid" ] && [ ! -e "$J/exit" ] && [ "$n" -lt 40 ]; do
  sleep 0.05 2>/dev/null || sleep 1
  n=$((n + 1))
done
exec "$@"
"""

# $1: tenths of a second to wait for the ends, then the directories.
_ASK: Final = """\
n=$1; shift
for J; do read -r pid <"$J/pid" && kill -s TERM "$pid"; done 2>/dev/null
while [ "$n" -gt 0 ]; do
  left=
  for J; do [ -e "$J/exit" ] || left=1; done
  [ -z "$left" ] && exit 0
  sleep 0.1 2>/dev/null || sleep 1
  n=$((n - 1))
done
exit 1
"""


# Agents empty /tmp; what we need is elsewhere if possible. $1: the working directory, $2: our directory's name.
_SETTLE: Final = """\
mkdir -p -- "$1" || exit 1
s=-; e=-
command -v setsid >/dev/null && s=setsid
env --default-signal=INT,QUIT true 2>/dev/null && e=signals
for base in /var/tmp /tmp; do
  [ -d "$base/$2" ] || (umask 077 && mkdir "$base/$2") 2>/dev/null || continue
  echo "vf-tui: $s $e $base/$2"; exit 0
done
echo "neither /var/tmp nor /tmp can be written to" >&2; exit 97
"""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a sandbox has for us: a private directory; whether a program can get a session of its own; whether `env`
    can make a program hear SIGINT and SIGQUIT again, for which whatever a shell starts in the background is deaf."""

    directory: str
    setsid: bool
    signals: bool


def settle(workdir: str, name: str) -> str:
    """Make the working directory, and a private one for our own needs: see `settled`."""
    return shlex.join(["bash", "-c", _SETTLE, "vf-settle", workdir, name])


def settled(executed: Executed) -> Ground:
    """What `settle` found. Raises `CallError`."""
    words = executed.stdout.strip().split(" ", 3)
    if executed.exit_code == 0 and len(words) == 4 and words[0] == _TOLD and words[3].startswith("/"):
        return Ground(words[3], words[1] == "setsid", words[2] == "signals")
    kind: Kind = "refused" if executed.exit_code in (1, 97, 126, 127) else "garbled"
    raise CallError(kind, f"exit {executed.exit_code} {executed.stderr.strip()[-300:]}".rstrip())


def pauses(seconds: float) -> str:
    """Growing pauses of about `seconds` together."""
    out, left = [], seconds
    for pause in (0.02, 0.05, 0.1, 0.1, 0.2, 0.2, 0.2, 0.3, 0.3, 0.5, 0.5, 0.5):
        if left <= 0:
            break
        out.append(pause)
        left -= pause
    out.extend([1.0] * max(0, round(left)))
    return " ".join(f"{pause:g}" for pause in out)


@dataclass(frozen=True, slots=True)
class Place:
    """A command's directory, where it runs, and its mark."""

    directory: str
    cwd: str
    mark: str


def starting(argv: Sequence[str], ground: Ground) -> list[str]:
    """How `argv` is started."""
    heard = ["env", "--default-signal=INT,QUIT"] if ground.signals and "=" not in argv[0] else []
    return ["setsid" if ground.setsid else "", *heard, *argv]


def sweep(directories: Sequence[str]) -> str:
    """Remove the directories of commands that are over."""
    return f"rm -rf {shlex.join(directories)}; " if directories else ""


def streamed(
    place: Place, argv: Sequence[str] = (), *, wait: float, offsets: tuple[int, int] = (0, 0)
) -> str:
    """Start `argv`, as of `starting` (none: it was started), and wait for output beyond `offsets`, or its end."""
    numbers = (str(sum(offsets)), str(offsets[0]), str(offsets[1]), str(CHUNK))
    return _text(place, argv, wait, numbers, _STREAMED)


def whole(place: Place, argv: Sequence[str] = (), *, wait: float, head: int, tail: int) -> str:
    """Start `argv` (none: it was started), wait for its end; of longer output its beginning and its end."""
    return _text(place, argv, wait, ("-", str(head), str(tail), str(head + tail)), _ENDS)


def _text(place: Place, argv: Sequence[str], wait: float, numbers: tuple[str, ...], report: str) -> str:
    script = _VARIABLES + (_LAUNCH if argv else "") + _WAIT + report
    keeper = _KEEPER if argv else ""
    parameters = (place.directory, place.cwd, place.mark, pauses(wait), *numbers, keeper)
    return f"set -- {shlex.join([*parameters, *argv])}\n{script}"


def end(place: Place, kill: Sequence[str]) -> str:
    """End a command, or prevent its start; `kill` ends what carries its mark."""
    return shlex.join(["sh", "-c", _END, "vf-end", place.directory, *kill])


def ask(directories: Sequence[str], grace: float) -> str:
    """Ask programs to end, and wait for that up to `grace` seconds: exit 0 when all have."""
    return shlex.join(["sh", "-c", _ASK, "vf-ask", str(round(grace * 10)), *directories])


# ---------------------------------------------------------------------- reports


@dataclass(frozen=True, slots=True)
class Report:
    """How a command is: its exit code or word (None: it runs), the sizes of its output, and parts of that: for
    each stream the pieces that came."""

    exit: str | None
    sizes: tuple[int, int]
    parts: tuple[tuple[bytes, ...], tuple[bytes, ...]] = ((), ())

    @property
    def code(self) -> int:
        """The exit code of one that ended."""
        return int(self.exit or 0)


def parse(executed: Executed) -> Report:
    """What `streamed` and `whole` print. Raises `CallError` when that did not arrive complete."""
    lines = executed.stdout.split("\n")
    head = lines[0].split()
    try:
        if head[0] != _TOLD:
            raise ValueError(head[0])
        exit, sizes = head[1], (int(head[2]), int(head[3]))
        parts = tuple(_parts(block) for block in _blocks(lines[1:]))
        complete = len(parts) == 2 or (exit == "-" and not any(lines[1:]))
        if not (exit in ("-", NO_DIRECTORY) or exit.isdigit()) or not complete:
            raise ValueError(exit)
    except (ValueError, IndexError, binascii.Error) as e:
        raise _unreported(executed) from e
    return Report(None if exit == "-" else exit, sizes, (parts[0], parts[1]) if parts else ((), ()))


def _unreported(executed: Executed) -> CallError:
    said = executed.stderr.strip()[-300:]
    if executed.exit_code == 97:
        return CallError("refused", f"there is no place for a command's output in the sandbox: {said}")
    if executed.exit_code in (126, 127):
        return CallError("refused", f"the image lacks what running commands needs: {said}")
    return CallError(
        "garbled", f"a command's report is incomplete: exit {executed.exit_code} {said}".rstrip()
    )


def _blocks(lines: Sequence[str]) -> list[list[str]]:
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line == ".":
            blocks.append([])
        else:
            blocks[-1].append(line)
    return blocks[:-1]


def _parts(lines: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(base64.b64decode(part, validate=False) for part in "".join(lines).split(",") if part)
