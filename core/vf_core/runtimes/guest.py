"""What is done inside sandboxes that only take commands: marking and ending process trees, reading files, preparing
programs. All of it is POSIX shell (dash and busybox do) with `grep`, `cat`, `kill`, `head` and `mktemp`.
"""

from __future__ import annotations

import asyncio
import json
import math
import posixpath
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from vf_core.errors import HarnessError, SandboxError, SandboxFileNotFoundError, SandboxIsADirectoryError
from vf_core.runtimes import scripts

if TYPE_CHECKING:
    from vf_core.runtimes.base import Runtime

MARK_VARIABLE: Final = "VF_TUI_COMMAND"
PROBE_TIMEOUT = 60.0
INSTALL_TIMEOUT = 900.0

# ---------------------------------------------------------------------- process trees

# $1: the mark; $2: tenths of a second between TERM and KILL. Exit 0: no process carries the mark.
# A zombie has no environment left, and so is not found.
_KILL = r"""
if printf 'a\0b\n' | grep -qF b; then
  carriers() { grep -lsF -- "VF_TUI_COMMAND=$1" /proc/[0-9]*/environ 2>/dev/null; }
else
  # This grep ends at a NUL; a substitution drops them.
  carriers() {
    for file in /proc/[0-9]*/environ; do
      case $(cat "$file" 2>/dev/null) in *"VF_TUI_COMMAND=$1"*) echo "$file" ;; esac
    done 2>/dev/null
  }
fi
# Each is asked once, since a second TERM may cut short what the first one began: groups as such, all others alone.
ask() {
  all=" $(echo $1) "
  for file in $all; do
    pid=${file#/proc/}; pid=${pid%/environ}; line=
    { read -r line <"/proc/$pid/stat"; } 2>/dev/null
    set -- ${line##*) }
    [ "$3" = "$pid" ] && kill -s TERM -- "-$pid" 2>/dev/null && continue
    case $all in *" /proc/$3/environ "*) ;; *) kill -s TERM "$pid" 2>/dev/null ;; esac
  done
}
end() {
  for file in $1; do
    pid=${file#/proc/}; pid=${pid%/environ}
    kill -s KILL -- "-$pid" 2>/dev/null
    kill -s KILL "$pid" 2>/dev/null
  done
}
left=$(carriers "$1"); [ -z "$left" ] && exit 0
turn=0
if [ "$2" -gt 0 ]; then
  ask "$left"
  while [ "$turn" -lt "$2" ]; do
    sleep 0.1 2>/dev/null || sleep 1
    left=$(carriers "$1"); [ -z "$left" ] && exit 0
    turn=$((turn + 1))
  done
fi
turn=0
while [ "$turn" -lt 60 ]; do
  end "$left"
  sleep 0.05 2>/dev/null || sleep 1
  left=$(carriers "$1"); [ -z "$left" ] && exit 0
  turn=$((turn + 1))
done
exit 1
"""


def new_mark() -> str:
    """What tells one command's processes, whatever they start, from all others in a sandbox."""
    return secrets.token_hex(12)


def marked_env(env: Mapping[str, str] | None, mark: str) -> dict[str, str]:
    """The command's variables, with its mark: children inherit it."""
    return {**(env or {}), MARK_VARIABLE: mark}


def kill_argv(mark: str, grace: float = 0.0) -> list[str]:
    """Ends every process that carries the mark: asked first, killed after `grace` seconds. Exit code 0 when none is
    left; takes at most `grace` and some 10 seconds more."""
    return ["sh", "-c", _KILL, "vf-kill", mark, str(max(0, math.ceil(grace * 10)))]


# ---------------------------------------------------------------------- directories and files

_MISSING, _DIRECTORY, _NOT_A_FILE, _UNREADABLE = 44, 43, 45, 46
_READ = """
[ -d "$1" ] && exit 43
[ -e "$1" ] || exit 44
[ -f "$1" ] || exit 45
[ -r "$1" ] || exit 46
if [ "$2" = all ]; then exec cat -- "$1"; fi
exec head -c "$2" -- "$1"
"""


def resolve(path: str, workdir: str) -> str:
    """A path of the contract as an absolute one."""
    return posixpath.normpath(posixpath.join(workdir, path))


def read_argv(path: str, limit: int | None = None) -> list[str]:
    """Prints an absolute path's first `limit` bytes (None: all); see `read_failed` for its other exit codes."""
    return ["sh", "-c", _READ, "vf-read", path, "all" if limit is None else str(limit)]


def read_failed(code: int, path: str, stderr: str = "") -> SandboxError:
    """What a `read_argv` command's exit code other than 0 says."""
    if code == _MISSING:
        return SandboxFileNotFoundError(f"{path}: no such file in the sandbox")
    if code == _DIRECTORY:
        return SandboxIsADirectoryError(f"{path} is a directory")
    told = {_NOT_A_FILE: "is no regular file", _UNREADABLE: "may not be read by the sandbox's user"}
    return SandboxError(f"{path} {told.get(code) or f'cannot be read: exit {code} {stderr.strip()[-200:]}'}")


# ---------------------------------------------------------------------- programs

# Prints a private directory, then what each interpreter has of the distributions named by $2…; $1 is 1 to look.
_PROBE = r"""
umask 077
dir=$(mktemp -d "${TMPDIR:-/tmp}/vf-tui-XXXXXX") || dir=$(mktemp -d "$PWD/.vf-tui-XXXXXX") || exit 1
echo "$dir"
look=$1; shift
[ "$look" = 1 ] || exit 0
for python in python3 python; do
  path=$(command -v "$python") || continue
  "$path" -I -c '
import json, sys
from importlib import metadata
have = {}
for name in sys.argv[1:]:
    try:
        have[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print(json.dumps({"python": sys.executable, "version": ".".join(map(str, sys.version_info[:3])), "have": have}))
' "$@" && exit 0
done
exit 0
"""

# $1: directory with program.py and requirements.txt; $2: an interpreter that is new enough, or empty.
# Prints the interpreter to use as its last line. The image's own settings of uv and pip are not ours.
_INSTALL = r"""
cd -- "$1" || exit 1
for name in $(env | sed -n 's/^\(\(UV\|PIP\|VIRTUAL_ENV\|PYTHON\)[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
by_uv() {
  "$1" sync --script program.py --no-config -q || return 1
  "$1" python find --script program.py --no-config
}
for uv in $(command -v uv) "$HOME/.local/bin/uv"; do
  [ -x "$uv" ] && by_uv "$uv" && exit 0
done
if [ -n "$2" ] && "$2" -m venv env; then
  env/bin/python -m pip install --isolated --no-input --disable-pip-version-check -q -r requirements.txt &&
    echo "$1/env/bin/python" && exit 0
fi
export UV_INSTALL_DIR="$1/uv" UV_NO_MODIFY_PATH=1 INSTALLER_NO_MODIFY_PATH=1
if command -v curl >/dev/null; then
  curl -LsSf https://astral.sh/uv/install.sh | sh >&2
elif command -v wget >/dev/null; then
  wget -qO- https://astral.sh/uv/install.sh | sh >&2
else
  echo "there is neither uv, nor a python3 with venv and pip, nor curl or wget in the image" >&2
fi
by_uv "$1/uv/uv"
"""


@dataclass(frozen=True, slots=True)
class _Guest:
    """What an image has: an interpreter (empty: none that is new enough) and what it lacks of a header."""

    python: str
    lacking: tuple[str, ...]


_known: dict[tuple[str, ...], _Guest] = {}
_prepared: WeakKeyDictionary[Any, dict[str, list[str]]] = WeakKeyDictionary()
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Lock]] = WeakKeyDictionary()


async def prepare_script(
    runtime: Runtime, image: str, source: str, requires: Sequence[str] = ()
) -> list[str]:
    """See `Runtime.prepare_script`: by the image's own Python when that has what is required, else by uv or pip.

    `image` is where the sandbox came from: what its Python has is looked up once. Raises `HarnessError` when the
    requirements cannot be met, `SandboxError` when the sandbox does not answer.
    """
    key = f"{runtime.name} {runtime.sandbox_id} {hash((source, tuple(requires)))}"
    lock = _locks.setdefault(asyncio.get_running_loop(), {}).setdefault(key, asyncio.Lock())
    async with lock:
        mine = _prepared.setdefault(runtime, {})
        if key not in mine:
            mine[key] = await _prepare(runtime, image, source, requires)
        return list(mine[key])


async def _prepare(runtime: Runtime, image: str, source: str, requires: Sequence[str]) -> list[str]:
    header = scripts.parse_header(source).with_more(requires)
    about = (runtime.kind, image, header.python, *header.dependencies)
    guest = _known.get(about)
    directory, found = await _probe(runtime, header, look=guest is None)
    if guest is None:
        guest = _known[about] = _judge(found, header)
    program = posixpath.join(directory, "program.py")
    await runtime.write(program, scripts.with_header(source, header).encode(errors="surrogatepass"))
    if not guest.lacking:
        return [guest.python, *scripts.ISOLATED, program]
    return [await _install(runtime, image, header, guest, directory), *scripts.ISOLATED, program]


async def _probe(runtime: Runtime, header: scripts.Header, *, look: bool) -> tuple[str, dict[str, Any]]:
    """A new private directory in the sandbox, and what its Python has."""
    names = [requirement.name for requirement in scripts.requirements(header)]
    argv = ["sh", "-c", _PROBE, "vf-probe", "1" if look else "0", *names]
    result = await runtime.run(argv, timeout=PROBE_TIMEOUT)
    lines = result.stdout.splitlines()
    if result.exit_code != 0 or not lines or not lines[0].startswith("/"):
        raise HarnessError(
            f"no place for a program in sandbox {runtime.name}: exit {result.exit_code} "
            f"{result.stderr.strip()[-500:]}",
            hint="the image needs a POSIX shell and a directory that its user may write to",
        )
    try:
        found = json.loads(lines[-1]) if len(lines) > 1 else {}
    except ValueError:
        found = {}
    return lines[0], found if isinstance(found, dict) else {}


def _judge(found: Mapping[str, Any], header: scripts.Header) -> _Guest:
    from packaging.specifiers import SpecifierSet

    version, have = str(found.get("version", "")), found.get("have", {})
    if not version or (header.python and not SpecifierSet(header.python).contains(version, prereleases=True)):
        return _Guest("", (f"Python {header.python or 3}", *header.dependencies))
    environment = {"python_full_version": version, "python_version": ".".join(version.split(".")[:2])}
    lacking = []
    for text, requirement in zip(header.dependencies, scripts.requirements(header), strict=True):
        if requirement.marker and not requirement.marker.evaluate({**environment, "extra": ""}):
            continue
        # Whether extras are complete is the installer's to say.
        simple = not requirement.url and not requirement.extras
        held = have.get(requirement.name)
        if not (simple and held and requirement.specifier.contains(held, prereleases=True)):
            lacking.append(text)
    return _Guest(str(found["python"]), tuple(lacking))


async def _install(
    runtime: Runtime, image: str, header: scripts.Header, guest: _Guest, directory: str
) -> str:
    needed = "".join(f"{text}\n" for text in header.dependencies)
    await runtime.write(posixpath.join(directory, "requirements.txt"), needed.encode())
    argv = ["sh", "-c", _INSTALL, "vf-install", directory, guest.python]
    result = await runtime.run(argv, timeout=INSTALL_TIMEOUT)
    lines = result.stdout.splitlines()
    if result.exit_code != 0 or not lines or not lines[-1].startswith("/"):
        why = "took too long" if result.timed_out else f"exit {result.exit_code}"
        raise HarnessError(
            f"the program needs {', '.join(guest.lacking)}, which image {image} lacks, and installing that there "
            f"failed ({why}): {result.stderr.strip()[-500:]}",
            hint="use an image that has them, or one with uv, or with a python3 that has venv and pip",
        )
    return lines[-1]
