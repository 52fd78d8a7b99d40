"""Images for the tests, made from what this machine has, without a download. Built once, named by content."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import quote

from packaging.requirements import Requirement

from doubles.engine_host import CACHE, call, locked, unavailable
from vf_core.harnesses.bash.harness import BashHarness
from vf_core.harnesses.program.assemble import program_source
from vf_core.runtimes import scripts

_VERSION = 1
_LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "__pycache__"}
_PASSWD = b"root:x:0:0:root:/root:/bin/sh\nagent:x:1234:1234::/home/agent:/bin/sh\n"


@cache
def busybox_image(*changes: str) -> str:
    """A small image with a POSIX shell; `changes` as in a Dockerfile, such as `USER 1234`."""
    busybox = _static_busybox()
    key = _key("busybox", busybox.read_bytes(), *changes)
    return _have(f"localhost/vf-tui-test-busybox-{key}", lambda: _busybox_tar(busybox), changes)


@cache
def shellless_image() -> str:
    """An image with a program, and no shell."""
    busybox = _static_busybox()

    def build() -> io.BufferedIOBase:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            _skeleton(tar)
            tar.add(busybox.resolve(), "bin/program", filter=_plain)
        buffer.seek(0)
        return buffer

    return _have(f"localhost/vf-tui-test-shellless-{_key('shellless', busybox.read_bytes())}", build, ())


@cache
def python_image(*changes: str) -> str:
    """An image with this Python, bash, and what the harness programs need."""
    found = _closure(scripts.parse_header(program_source(BashHarness.PROGRAM)).dependencies)
    versions = sorted(f"{dist.name}={dist.version}" for dist in found)
    key = _key("python", sys.version, sys.base_prefix, *versions, *changes)
    return _have(f"localhost/vf-tui-test-python-{key}", lambda: _python_tar(found, key), changes)


@cache
def curl_image() -> str:
    """`python_image`, and curl in it."""
    curl = Path(os.path.realpath(shutil.which("curl") or unavailable("curl is not on this machine")))
    python = python_image()
    name = f"localhost/vf-tui-test-curl-{_key(python, curl.read_bytes())}"
    with locked("images"):
        if not _there(name):
            _add(python, name, curl)
    return name


def _add(image: str, name: str, program: Path) -> None:
    """Make an image of another one and a program of this host."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(program, f"usr/local/bin/{program.name}", filter=_plain)
        _libraries(tar, [program])
    buffer.seek(0)
    status, made = call("POST", "/v1.41/containers/create", {"Image": image})
    assert status == 201, made
    box = made["Id"]
    try:
        status, said = call("PUT", f"/v1.41/containers/{box}/archive?path=/", buffer)
        assert status == 200, said
        status, said = call("POST", f"/v1.41/commit?container={box}&repo={quote(name)}&tag=latest", {})
        assert status == 201, said
    finally:
        call("DELETE", f"/v1.41/containers/{box}?force=true")


def _key(*parts: str | bytes) -> str:
    digest = hashlib.sha256(f"{_VERSION}".encode())
    for part in parts:
        digest.update(part if isinstance(part, bytes) else part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:12]


def _have(name: str, build, changes: Iterable[str]) -> str:
    if _there(name):
        return name
    with locked("images"):
        if _there(name):
            return name
        query = "".join(f"&changes={quote(change)}" for change in ("CMD /bin/sh", *changes))
        with build() as f:
            status, said = call(
                "POST", f"/v1.41/images/create?fromSrc=-&repo={quote(name)}&tag=latest{query}", f
            )
        assert status == 200, said
        assert _there(name), f"the engine did not keep {name}: {said}"
    return name


def _there(name: str) -> bool:
    status, said = call("GET", f"/v1.41/images/{quote(name)}/json")
    assert status in (200, 404), said
    return status == 200


# ---------------------------------------------------------------------- what goes in


def _static_busybox() -> Path:
    path = shutil.which("busybox")
    if path is None or not sys.platform.startswith("linux"):
        unavailable("the tests' images need Linux and busybox (apt-get install busybox-static)")
    return Path(path)


def _busybox_tar(busybox: Path) -> io.BufferedIOBase:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _skeleton(tar)
        _busybox(tar, busybox)
        _libraries(tar, [busybox])
    buffer.seek(0)
    return buffer


def _python_tar(found: Iterable[Distribution], key: str) -> io.BufferedIOBase:
    path = CACHE / f"python-{key}.tar"
    if not path.exists():
        temporary = path.with_suffix(".tmp")
        with tarfile.open(temporary, "w") as tar:
            _skeleton(tar)
            _busybox(tar, _static_busybox())
            _python(tar, found)
        os.replace(temporary, path)
    return open(path, "rb")


def _skeleton(tar: tarfile.TarFile) -> None:
    for name in ("proc", "sys", "dev", "etc", "bin", "usr/local/bin", "root", "home/agent"):
        _directory(tar, name)
    _directory(tar, "tmp", 0o1777)
    _file(tar, "etc/passwd", _PASSWD)
    _file(tar, "etc/group", b"root:x:0:\nagent:x:1234:\n")
    _file(tar, "etc/nsswitch.conf", b"hosts: files dns\n")


def _busybox(tar: tarfile.TarFile, busybox: Path) -> None:
    tar.add(busybox.resolve(), "bin/busybox", filter=_plain)
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        if name != "busybox":
            _link(tar, f"bin/{name}", "busybox")


def _python(tar: tarfile.TarFile, found: Iterable[Distribution]) -> None:
    binary = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    bash = Path(os.path.realpath(shutil.which("bash") or "/bin/bash"))
    stdlib = Path(
        sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix})
    )
    machine = [binary, bash]
    tar.add(binary, str(binary).lstrip("/"), filter=_plain)
    tar.add(bash, "usr/local/bin/bash", filter=_plain)
    for name in ("python3", "python"):
        _link(tar, f"usr/local/bin/{name}", str(binary))
    for path in sorted(stdlib.rglob("*")):
        inside = path.relative_to(stdlib)
        if _LEFT_OUT & set(inside.parts) or {"site-packages", "dist-packages"} & set(inside.parts):
            continue
        if path.is_file():
            tar.add(path, str(path).lstrip("/"), filter=_plain)
            machine += [path] if path.suffix == ".so" else []
    ask = "import site; print(site.getsitepackages()[0])"
    site = subprocess.run(
        [binary, "-I", "-c", ask], capture_output=True, text=True, check=True
    ).stdout.strip()
    _directory(tar, site.lstrip("/"))
    for dist in found:
        for file in dist.files or ():
            source = Path(str(file.locate()))
            if ".." in file.parts or "__pycache__" in file.parts or not source.is_file():
                continue
            tar.add(source, f"{site}/{file}".lstrip("/"), filter=_plain)
            machine += [source] if ".so" in source.suffixes else []
    _libraries(tar, machine)


def _libraries(tar: tarfile.TarFile, binaries: Iterable[Path]) -> None:
    """The shared libraries that these need, and the loader, at their own paths."""
    needed: set[str] = set()
    for binary in binaries:
        said = subprocess.run(["ldd", binary], capture_output=True, text=True, check=False).stdout
        needed |= set(re.findall(r"(?:=> |^\s*)(/\S+) \(0x", said, re.MULTILINE))
    for path in sorted(needed):
        tar.add(os.path.realpath(path), path.lstrip("/"), filter=_plain)


def _closure(requirements: Iterable[str]) -> list[Distribution]:
    """The installed distributions that these requirements come to."""
    found: dict[str, Distribution] = {}
    waiting = [(Requirement(text), {""}) for text in requirements]
    while waiting:
        requirement, extras = waiting.pop()
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        key = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if key in found and not requirement.extras:
            continue
        try:
            dist = found[key] = distribution(requirement.name)
        except PackageNotFoundError:
            continue
        wanted = {"", *requirement.extras}
        waiting += [(Requirement(text), wanted) for text in dist.requires or ()]
    return list(found.values())


# ---------------------------------------------------------------------- entries


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    if info.isfile():
        info.mode = 0o755 if info.mode & 0o111 else 0o644
    return info


def _directory(tar: tarfile.TarFile, name: str, mode: int = 0o755) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    tar.addfile(info)


def _file(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    tar.addfile(info, io.BytesIO(data))


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
    tar.addfile(info)
