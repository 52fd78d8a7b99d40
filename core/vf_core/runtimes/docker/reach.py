"""Whether a program in a container reaches an address on this host, asked with what the container has."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from vf_core.errors import SandboxError

# $1: URL; $2: host; $3: port. Exit 0: an answer came; 1: none, with the reason; 2: nothing here can ask.
_ASK: Final = r"""
tried=
if command -v python3 >/dev/null; then
  tried=python3
  python3 -I -c '
import sys, urllib.error, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    opener.open(sys.argv[1], timeout=8).close()
except urllib.error.HTTPError:
    pass
except Exception as e:
    sys.exit(str(getattr(e, "reason", e)))
' "$1" && exit 0
elif command -v curl >/dev/null; then
  tried=curl
  curl -sS --noproxy '*' -m 8 -o /dev/null "$1" && exit 0
elif command -v bash >/dev/null && command -v timeout >/dev/null; then
  tried=bash
  timeout 8 bash -c 'exec 9<>"/dev/tcp/$1/$2"' bash "$2" "$3" && exit 0
elif command -v nc >/dev/null; then
  tried=nc
  # Its exit code tells of the end of the connection, too; an answer is an answer.
  [ -n "$(printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 8 "$2" "$3" | head -c 4)" ] && exit 0
elif command -v wget >/dev/null; then
  tried=wget
  case $(wget -q -T 8 -O /dev/null "$1" 2>&1; echo "exit $?") in
  *'exit 0' | *'server returned error'*) exit 0 ;;
  *) echo 'wget got no answer' >&2 ;;
  esac
fi
[ -n "$tried" ] || exit 2
exit 1
"""
NO_ANSWER: Final = 1
_TUNNEL: Final = (
    "set env.interception.tunnel (with always = true) to a way by which containers reach this host"
)


def ask_argv(url: str) -> list[str]:
    """Asks for `url` from inside. Raises `SandboxError` for what is no http URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SandboxError(f"{url!r} is not an http address")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return ["sh", "-c", _ASK, "vf-reach", url, parts.hostname, str(port)]


def unreachable(url: str, account: str, product: str, said: str) -> SandboxError:
    """What a failed question means, and what to do about it."""
    host = urlsplit(url).hostname or ""
    loopback = host in ("localhost", "::1") or host.startswith("127.")
    if not loopback:
        hint = f"check name resolution, routes and firewalls between the container and {host}"
    elif "desktop" in product.lower():
        hint = (
            "Docker Desktop runs containers in a virtual machine whose loopback is not this host's: switch on "
            f"Settings > Resources > Network > Enable host networking, or {_TUNNEL}"
        )
    elif account.startswith("unix://"):
        hint = f"a rootless engine may have a loopback of its own: use rootful Docker or Podman, or {_TUNNEL}"
    else:
        hint = f"the engine runs on another host, whose loopback is not this one's: {_TUNNEL}"
    last = said.strip().splitlines()[-1:] or ["no answer"]
    return SandboxError(
        f"a container of docker engine {account} cannot reach {url} on this host: {last[0][-200:]}", hint=hint
    )
