"""Installing a release of pool in a sandbox: one POSIX shell script (dash and busybox do).

The program appears under its name whole or not at all, by a rename in one directory. Parallel local rollouts wait for
the first one's install; one that was killed leaves a directory that the next one removes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from vf_core.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vf_core.runtimes.base import Runtime

INSTALL_TIMEOUT: Final = 900.0
_DETAIL: Final = 500
"""Characters of a failed install's output that its error carries."""
_RELEASES: Final = "VF_POOL_RELEASES"
_LOGIN: Final = re.compile(r"(?<=://)[^/@]*@")

# $1: the directory; $2: the version; $3: where from, as it may be shown; $4: this script; $5: set once the lock is
# held. The address itself comes in the environment, and goes to curl by a pipe: a mirror's may hold a password.
_INSTALL: Final = r"""
dir=$1 pool=$1/pool
umask 022
fail() { printf '%s\n' "$*" >&2; exit 1; }
there() { [ -f "$pool" ] && [ -s "$pool" ] && [ -x "$pool" ]; }

# Anyone can make a directory in /tmp: what others may have put there is not run.
check_owner() {
  [ -d "$dir" ] && [ ! -L "$dir" ] || fail "$dir is not a directory: remove it"
  set -- $(ls -lnd "$dir")
  case $3 in
    0 | "$(id -u)") ;;
    *) fail "$dir belongs to user $3, who could have put anything there: remove it, or use another version" ;;
  esac
  case $1 in
    ?????w* | ????????w*) fail "others may write to $dir: remove it, or chmod go-w it if you trust what is in it" ;;
  esac
}

need() {
  command -v "$1" >/dev/null && return
  command -v apt-get >/dev/null || fail "$1 is missing here, and there is no apt-get: use an image that has $1"
  [ "$(id -u)" = 0 ] || fail "$1 is missing here, and only root can install it: use an image that has $1"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update -qq && apt-get install -y -qq -o DPkg::Lock::Timeout=120 "$@"; } </dev/null >&2 ||
    fail "$1 is missing here, and apt-get could not install it"
  command -v "$1" >/dev/null || fail "$1 is missing here, also after apt-get installed it"
}

# A program for another machine would be read by the shell as a script of its own.
check_program() {
  command -v od >/dev/null || return
  case $os-$arch:$(od -An -tx1 -N20 "$1" | tr -d ' \n') in
    *:2321*) ;;
    linux-amd64:7f454c46????????????????????????????3e00) ;;
    linux-arm64:7f454c46????????????????????????????b700) ;;
    darwin-amd64:cffaedfe07000001* | darwin-arm64:cffaedfe0c000001* | darwin-*:cafebabe*) ;;
    *) fail "$name in $from is no program for $os-$arch" ;;
  esac
}

install_pool() {
  there && return
  case $(uname -s) in
    Linux) os=linux ;;
    Darwin) os=darwin ;;
    *) fail "there is no pool for the system $(uname -s): it runs on Linux and Darwin" ;;
  esac
  case $(uname -m) in
    aarch64 | arm64) arch=arm64 ;;
    x86_64 | amd64) arch=amd64 ;;
    *) fail "there is no pool for the architecture $(uname -m): it runs on arm64 and amd64" ;;
  esac
  need curl ca-certificates
  need tar
  name=pool-$os-$arch
  from=$3/v$2/$name.tar.gz
  new=$(mktemp -d "$dir/.new.XXXXXX") || exit 1
  trap 'rm -rf "$new"' EXIT
  trap 'exit 1' HUP INT TERM
  printf 'url = "%s"\n' "$VF_POOL_RELEASES/v$2/$name.tar.gz" |
    curl -fsSLg --retry 2 --connect-timeout 30 --speed-limit 1 --speed-time 60 -K - -o "$new/archive" ||
    fail "$from could not be downloaded"
  mkdir "$new/out"
  tar -xzof "$new/archive" -C "$new/out" </dev/null || fail "$from is no gzipped tar archive, or a damaged one"
  [ -f "$new/out/$name" ] && [ ! -L "$new/out/$name" ] ||
    fail "$from holds no $name, but $(cd "$new/out" && echo *)"
  check_program "$new/out/$name"
  chmod 755 "$new/out/$name" || exit 1
  if [ -d "$pool" ]; then rm -rf "$pool"; fi
  mv -f "$new/out/$name" "$pool" || exit 1
  there || fail "$pool cannot be executed: is /tmp mounted noexec?"
}

if [ "$5" != locked ]; then
  [ -d "$dir" ] || mkdir -m 755 "$dir" || [ -d "$dir" ] || exit 1
  check_owner
  there && exit 0
  if command -v flock >/dev/null; then
    exec 9>>"$dir/install.lock"
    flock 9 || exit 1
  elif command -v lockf >/dev/null; then
    exec lockf -k "$dir/install.lock" sh -c "$4" vf-pool-install "$1" "$2" "$3" "$4" locked
  else
    # Nobody is kept out, so what is there may be another's work.
    install_pool "$@"
    exit
  fi
fi
rm -rf "$dir"/.new.*
# Only this shell holds the lock: what it started may outlive it when it is killed.
install_pool "$@" 9>&-
"""


def pool_directory(version: str) -> str:
    """Where a version is installed, in a sandbox."""
    return f"/tmp/vf-pool-{version}"  # noqa: S108 - the script looks at who made it


async def install(runtime: Runtime, version: str, base: str, environment: Mapping[str, str]) -> None:
    """Have pool `version` in the sandbox, from the releases under `base`, unless it is there.

    Raises `HarnessError` with the end of what the install said.
    """
    shown = _LOGIN.sub("", base)
    argv = ["sh", "-c", _INSTALL, "vf-pool-install", pool_directory(version), version, shown, _INSTALL]
    result = await runtime.run(argv, {**environment, _RELEASES: base}, timeout=INSTALL_TIMEOUT)
    if result.timed_out:
        raise HarnessError(f"pool {version} was not installed within {INSTALL_TIMEOUT:g} s")
    if result.exit_code != 0:
        detail = (result.stderr or result.stdout).strip()[-_DETAIL:] or f"exit {result.exit_code}"
        raise HarnessError(f"pool {version} could not be installed: {detail}")
