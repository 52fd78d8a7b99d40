"""Which engine is meant: `DOCKER_HOST`, else the docker context, else the sockets that engines usually have.

The order is the docker command's own. Nothing here talks to an engine, but for a connection that is closed at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from vf_core.errors import SandboxError

UNIX: Final = "unix://"
_TCP_PORT, _TLS_PORT = 2375, 2376
_CONNECT_TIMEOUT = 2.0

GROUP_HINT = (
    "your user may not use it: join its group with sudo usermod -aG docker $USER and log in again, "
    "or set DOCKER_HOST to an engine of your own, such as rootless Docker or Podman"
)
START_HINT = (
    "start it, as sudo systemctl start docker or podman system service --time=0 do, "
    "or set DOCKER_HOST to an engine that runs"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An engine's address. `url` is unix://PATH, http://HOST:PORT or https://HOST:PORT; `source` says where it was
    found; `certificates` is a directory with ca.pem, cert.pem and key.pem, for https."""

    url: str
    source: str = ""
    certificates: Path | None = None
    verify: bool = True

    @property
    def path(self) -> str:
        """The socket's path; empty for other addresses."""
        return self.url.removeprefix(UNIX) if self.url.startswith(UNIX) else ""

    @property
    def host(self) -> str:
        """Where the engine's containers' ports are, when they share its network."""
        return "127.0.0.1" if self.path else self.url.partition("://")[2].rpartition(":")[0]

    @property
    def account(self) -> str:
        """The engine by its address: the same text for the same place."""
        if self.path:
            return UNIX + os.path.realpath(self.path)
        return self.url

    def tls(self) -> ssl.SSLContext | None:
        """For https: what the certificates say. Raises `SandboxError` when they cannot be used."""
        if not self.url.startswith("https:"):
            return None
        try:
            return _tls(self.certificates, verify=self.verify)
        except (OSError, ValueError) as e:
            raise SandboxError(
                f"the certificates for docker engine {self.account} cannot be used: {e}",
                hint=f"look at {self.certificates or 'DOCKER_CERT_PATH'}",
            ) from e


def resolve(env: Mapping[str, str] | None = None) -> Endpoint:
    """The engine that the docker command would use here, else one found at a usual place.

    Raises `SandboxError`, which says what to do, when there is none, or it is given in a way that cannot be used.
    """
    env = os.environ if env is None else env
    if host := env.get("DOCKER_HOST"):
        return _by_host(host, env)
    name, said_by = _context_name(env)
    if name not in ("", "default"):
        return _by_context(name, said_by, env)
    return _by_socket(env)


def connect_problem(engine: Endpoint) -> OSError | None:
    """What keeps this process from an engine's address: None when somebody answers there. A network that takes long
    to answer is no proof."""
    if not engine.path:
        parts = urlsplit(engine.url)
        try:
            socket.create_connection((parts.hostname, parts.port), _CONNECT_TIMEOUT).close()
        except TimeoutError:
            return None
        except OSError as e:
            return e
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_TIMEOUT)
        try:
            probe.connect(engine.path)
        except OSError as e:
            return e
    return None


def advice(problem: BaseException | None) -> str:
    """What to do about a connection that failed."""
    return GROUP_HINT if isinstance(problem, PermissionError) else START_HINT


# ---------------------------------------------------------------------- by variable


def _by_host(host: str, env: Mapping[str, str]) -> Endpoint:
    host = host.strip()
    source = "DOCKER_HOST"
    if host.startswith("/"):
        host = UNIX + host
    certificates = None
    verify = env.get("DOCKER_TLS_VERIFY", "") != ""
    if verify or env.get("DOCKER_TLS", "") != "":
        certificates = Path(env.get("DOCKER_CERT_PATH") or _config_dir(env))
    return _endpoint(host, source, certificates, verify=verify)


def _endpoint(host: str, source: str, certificates: Path | None, *, verify: bool = True) -> Endpoint:
    if host.startswith(UNIX):
        if not host.removeprefix(UNIX).startswith("/"):
            raise SandboxError(f"{source} names no engine: {host!r} has no absolute path after {UNIX}")
        return Endpoint(host, source)
    try:
        parts = urlsplit(host)
        port = parts.port
    except ValueError as e:
        raise SandboxError(f"{source} names no engine: {host!r}: {e}") from e
    if parts.scheme == "ssh":
        where = f"{parts.username}@{parts.hostname}" if parts.username else parts.hostname
        raise SandboxError(
            f"{source} names an engine over ssh ({where}), which the docker runtime does not use",
            hint=f"forward its socket: ssh -nNT -L /tmp/docker-remote.sock:/var/run/docker.sock {where} & "
            "export DOCKER_HOST=unix:///tmp/docker-remote.sock",
        )
    if parts.scheme not in ("tcp", "http", "https") or not parts.hostname:
        raise SandboxError(
            f"{source} names no engine that can be used: {_without_user(host)!r}",
            hint="expected unix:///PATH or tcp://HOST:PORT",
        )
    tls = certificates is not None or parts.scheme == "https"
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    url = f"{'https' if tls else 'http'}://{name}:{port or (_TLS_PORT if tls else _TCP_PORT)}"
    return Endpoint(url, source, certificates, verify)


def _without_user(host: str) -> str:
    scheme, found, rest = host.partition("://")
    return f"{scheme}{found}{rest.rpartition('@')[2]}"


# ---------------------------------------------------------------------- by context


def _config_dir(env: Mapping[str, str]) -> Path:
    return Path(env.get("DOCKER_CONFIG") or Path(env.get("HOME") or Path.home()) / ".docker")


def _context_name(env: Mapping[str, str]) -> tuple[str, str]:
    """The context's name (empty: none), and who says so."""
    if name := env.get("DOCKER_CONTEXT"):
        return name, "DOCKER_CONTEXT"
    path = _config_dir(env) / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        return "", ""
    except PermissionError:
        return "", ""
    except (OSError, ValueError) as e:
        raise SandboxError(f"{path} cannot be read: {e}", hint="correct it, or set DOCKER_HOST") from e
    name = config.get("currentContext") if isinstance(config, dict) else None
    return (name, str(path)) if isinstance(name, str) else ("", "")


def _by_context(name: str, said_by: str, env: Mapping[str, str]) -> Endpoint:
    root = _config_dir(env) / "contexts"
    key = hashlib.sha256(name.encode()).hexdigest()
    meta = root / "meta" / key / "meta.json"
    source = f"context {name}"
    try:
        found: Any = json.loads(meta.read_bytes())["Endpoints"]["docker"]
        host = found["Host"]
    except (OSError, ValueError, KeyError, TypeError) as e:
        why = "is not known here" if isinstance(e, FileNotFoundError) else f"cannot be read ({meta}: {e!r})"
        raise SandboxError(
            f"docker context {name!r}, named by {said_by}, {why}",
            hint="see docker context ls, or set DOCKER_HOST",
        ) from e
    certificates = root / "tls" / key / "docker"
    return _endpoint(
        str(host),
        source,
        certificates if certificates.is_dir() else None,
        verify=not found.get("SkipTLSVerify", False),
    )


# ---------------------------------------------------------------------- by place


def usual_sockets(env: Mapping[str, str]) -> Iterator[str]:
    """Where Docker (rootful, Desktop, rootless) and Podman (rootless, rootful) have their sockets, best first."""
    runtime = env.get("XDG_RUNTIME_DIR")
    home = env.get("HOME") or str(Path.home())
    yield "/var/run/docker.sock"
    yield f"{home}/.docker/run/docker.sock"
    yield f"{home}/.docker/desktop/docker.sock"
    own = f"/run/user/{os.getuid()}"
    places = [runtime, own] if runtime and runtime != own else [own]
    yield from (f"{place}/docker.sock" for place in places)
    yield from (f"{place}/podman/podman.sock" for place in places)
    yield "/run/podman/podman.sock"


def _by_socket(env: Mapping[str, str]) -> Endpoint:
    problems: list[tuple[str, OSError]] = []
    for path in usual_sockets(env):
        problem = connect_problem(Endpoint(UNIX + path))
        if problem is None:
            return Endpoint(UNIX + path, "found")
        if not isinstance(problem, FileNotFoundError | NotADirectoryError):
            problems.append((path, problem))
    if problems:
        path, problem = problems[0]
        raise SandboxError(
            f"docker engine {UNIX}{path} cannot be reached: {problem.strerror or problem}",
            hint=advice(problem),
        )
    raise SandboxError(
        "there is no docker engine here: no socket of Docker or Podman at any usual place",
        hint="install and start Docker or Podman (podman system service --time=0), or set DOCKER_HOST",
    )


def _tls(certificates: Path | None, *, verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    if certificates is not None:
        ca, cert, key = (certificates / f"{name}.pem" for name in ("ca", "cert", "key"))
        if ca.exists():
            context.load_verify_locations(cafile=ca)
        if cert.exists() and key.exists():
            context.load_cert_chain(cert, key)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
