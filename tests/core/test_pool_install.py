"""The real install script of the pool harness, in real sandboxes, from a release server that may serve badly."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from doubles.pool.releases import NAME, Releases, archive, remove
from vf_core.errors import HarnessError
from vf_core.harnesses.pool import PoolHarness, PoolHarnessConfig
from vf_core.runtimes.subprocess import SubprocessConfig, SubprocessRuntime

PATIENCE = 60.0
COMMANDS = ("sh", "ls", "id", "uname", "mkdir", "mktemp", "rm", "mv", "chmod", "tar", "gzip", "curl", "flock")
COMMANDS += ("od", "tr", "cat")


@pytest.fixture
def version() -> Iterator[str]:
    """A version of this test's own: releases are installed in the host's /tmp."""
    version = f"0.0.1-test+{secrets.token_hex(4)}"
    yield version
    remove(version)


@asynccontextmanager
async def _box() -> AsyncIterator[SubprocessRuntime]:
    box = SubprocessRuntime(SubprocessConfig(grace=0.2), name=f"vf-test-{secrets.token_hex(4)}")
    await box.start()
    try:
        yield box
    finally:
        await box.stop_confirmed()


async def _setup(version: str, base: str, **config: Any) -> None:
    config = {"version": version, "release_base": base, **config}
    async with _box() as box:
        await PoolHarness(PoolHarnessConfig.model_validate(config)).setup(box)


def _place(version: str) -> Path:
    return Path(f"/tmp/vf-pool-{version}")


def _tools(tmp_path: Path, **stubs: str | None) -> dict[str, str]:
    """A PATH with the commands of this machine that the script may use, but for `stubs`: scripts of their own in
    their place, None for none at all."""
    place = tmp_path / "bin"
    place.mkdir()
    if "id" in stubs:  # the directory must seem to be of a user who may have made it
        stubs.setdefault("ls", "echo drwxr-xr-x 2 0 0 40 x")
    for name in COMMANDS:
        if name not in stubs:
            (place / name).symlink_to(shutil.which(name) or "")
    for name, script in stubs.items():
        if script is not None:
            (place / name).write_text(f"#!/bin/sh\n{script}\n")
            (place / name).chmod(0o755)
    return {"PATH": str(place)}


async def test_eight_at_once_download_one_archive(version: str) -> None:
    with Releases() as releases:
        await asyncio.gather(*(_setup(version, f"{releases.base}/") for _ in range(8)))
        assert dict(releases.downloads) == {f"/releases/v{version}/{NAME}.tar.gz": 1}
    place = _place(version)
    assert sorted(os.listdir(place)) == ["install.lock", "pool"]
    assert stat.S_IMODE((place / "pool").stat().st_mode) == 0o755, "and not setuid, as in the archive"
    assert (place / "pool").stat().st_uid == os.getuid()
    # Without a server: it is there.
    await _setup(version, "http://127.0.0.1:9")


async def test_an_install_that_is_killed_half_way_is_redone(version: str) -> None:
    with Releases("slow") as releases:
        first = asyncio.create_task(_setup(version, releases.base))
        assert await asyncio.to_thread(releases.began.wait, PATIENCE)
        second = asyncio.create_task(_setup(version, releases.base))
        place = _place(version)
        assert [name for name in os.listdir(place) if name != "install.lock"], "half of it is there"
        releases.kind = "good"
        for pid in _installing(version):
            os.kill(pid, 9)
            break
        with pytest.raises(HarnessError, match="could not be installed"):
            await first
        await second
        assert releases.count == 2
        assert sorted(os.listdir(place)) == ["install.lock", "pool"]


def _installing(version: str) -> list[int]:
    """The installing shells, the one that holds the lock first: it is at work, the other one waits."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            argv = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0") if entry.isdigit() else []
        except OSError:
            continue
        if b"vf-pool-install" in argv and f"/tmp/vf-pool-{version}".encode() in argv:
            found.append(int(entry))
    return sorted(found)


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        ("missing", None, r"404.*could not be downloaded"),
        ("half", None, r"could not be downloaded"),
        ("bad", None, r"is no gzipped tar archive"),
        ("good", archive()[:-40], r"is no gzipped tar archive, or a damaged one"),
        ("good", archive("pool-linux-riscv64"), rf"holds no {NAME}, but pool-linux-riscv64"),
        ("good", archive(program=b"\x7fELF" + b"\0" * 14 + b"\xf3\0"), r"is no program for linux-"),
        ("good", archive(program=b"<html>"), r"is no program for"),
    ],
    ids=["404", "cut off", "no archive", "damaged", "another member", "another machine", "no program"],
)
async def test_what_is_no_release_is_refused_and_leaves_nothing(
    version: str, kind: str, body: bytes | None, says: str
) -> None:
    with Releases(kind, body) as releases:
        with pytest.raises(HarnessError) as failed:
            await _setup(version, releases.base)
        assert re.search(says, str(failed.value), re.DOTALL), failed.value
        assert os.listdir(_place(version)) == ["install.lock"]
        releases.kind, releases.body = "good", archive()
        await _setup(version, releases.base)
    assert (_place(version) / "pool").exists()


async def test_an_error_carries_the_last_500_characters(version: str, tmp_path: Path) -> None:
    env = _tools(tmp_path, curl="printf %02000d 0 >&2; echo the-end >&2; exit 7")
    with pytest.raises(HarnessError) as failed:
        await _setup(version, "http://127.0.0.1:9", env=env)
    detail = str(failed.value).partition("could not be installed: ")[2]
    assert len(detail) == 500
    assert "the-end\n" in detail


@pytest.mark.parametrize(
    ("system", "machine", "name"),
    [
        ("Linux", "x86_64", "linux-amd64"),
        ("Linux", "amd64", "linux-amd64"),
        ("Linux", "aarch64", "linux-arm64"),
        ("Darwin", "arm64", "darwin-arm64"),
        ("Darwin", "x86_64", "darwin-amd64"),
    ],
)
async def test_each_machine_asks_for_its_own_archive(
    version: str, tmp_path: Path, system: str, machine: str, name: str
) -> None:
    """What curl is told on its standard input, of the address that is there without a config."""
    env = _tools(
        tmp_path, uname=f"case $1 in -s) echo {system} ;; *) echo {machine} ;; esac", curl="cat >&2; exit 22"
    )
    place = "https://github.com/poolsideai/pool/releases/download"
    with pytest.raises(HarnessError, match=re.escape(f'url = "{place}/v{version}/pool-{name}.tar.gz"')):
        await _setup(version, PoolHarnessConfig().release_base, env=env)
    assert PoolHarnessConfig().version == "1.0.11"


async def test_an_install_that_hangs_ends(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vf_core.harnesses.pool.install.INSTALL_TIMEOUT", 0.5)
    env = _tools(tmp_path, curl=f"exec {shutil.which('sleep')} 600")
    with pytest.raises(HarnessError, match=r"was not installed within 0\.5 s"):
        await _setup(version, "http://127.0.0.1:9", env=env)


@pytest.mark.parametrize(
    ("stubs", "says"),
    [
        ({"uname": "case $1 in -s) echo Linux ;; *) echo riscv64 ;; esac"}, "no pool for the architecture riscv64"),
        ({"uname": "echo FreeBSD"}, "no pool for the system FreeBSD"),
        ({"curl": None}, "curl is missing here, and there is no apt-get"),
        ({"tar": None}, "tar is missing here, and there is no apt-get"),
        ({"curl": None, "apt-get": "exit 0", "id": "echo 1234"}, "only root can install it"),
        ({"curl": None, "apt-get": "echo E: no network >&2; exit 100", "id": "echo 0"}, "no network"),
        ({"curl": None, "apt-get": "exit 0", "id": "echo 0"}, "also after apt-get installed it"),
    ],
    ids=["machine", "system", "no curl", "no tar", "not root", "apt fails", "apt lies"],
)  # fmt: skip
async def test_what_a_machine_lacks_is_named(
    version: str, tmp_path: Path, stubs: dict[str, str | None], says: str
) -> None:
    with pytest.raises(HarnessError, match=says):
        await _setup(version, "http://127.0.0.1:9", env=_tools(tmp_path, **stubs))


async def test_curl_is_installed_where_it_is_missing(version: str, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    link = f"case $* in *curl*) {shutil.which('ln')} -s {shutil.which('curl')} {tmp_path}/bin/curl ;; esac"
    env = _tools(tmp_path, curl=None, **{"id": "echo 0", "apt-get": f'echo "$*" >>{asked}; {link}'})
    with Releases() as releases:
        await _setup(version, releases.base, env=env)
    first, second = asked.read_text().splitlines()
    assert first.startswith("update")
    assert "curl ca-certificates" in second
    assert (_place(version) / "pool").exists()


@pytest.mark.parametrize("lock", ["lockf", ""])
async def test_where_there_is_no_flock(version: str, tmp_path: Path, lock: str) -> None:
    """On macOS it is `lockf`; without either, whoever is last wins, whole."""
    stub = f'[ "$1" = -k ] && shift && exec {shutil.which("flock")} "$@"'
    env = _tools(tmp_path, flock=None, **({lock: stub} if lock else {}))
    with Releases() as releases:
        await asyncio.gather(*(_setup(version, releases.base, env=env) for _ in range(3)))
        assert releases.count == 1 if lock else 1 <= releases.count <= 3
    left = {name for name in os.listdir(_place(version)) if not name.startswith(".new.")}
    assert left == ({"install.lock", "pool"} if lock else {"pool"})


async def test_others_places_are_not_used(version: str, tmp_path: Path) -> None:
    """Anyone may make the directory first, in the host's /tmp."""
    place = _place(version)
    place.mkdir()
    (place / "pool").write_text("#!/bin/sh\ntouch stolen\n")
    (place / "pool").chmod(0o755)
    place.chmod(0o777)
    with pytest.raises(HarnessError, match="others may write to"):
        await _setup(version, "http://127.0.0.1:9")
    place.chmod(0o755)
    with pytest.raises(HarnessError, match=r"belongs to user \d+"):
        await _setup(version, "http://127.0.0.1:9", env=_owner(tmp_path))
    remove(version)
    place.symlink_to(tmp_path)
    with pytest.raises(HarnessError, match="is not a directory"):
        await _setup(version, "http://127.0.0.1:9")
    place.unlink()


def _owner(tmp_path: Path) -> dict[str, str]:
    return _tools(tmp_path, ls="echo drwxr-xr-x 2 4711 4711 40 x", id="echo 99")


async def test_a_mirrors_password_is_used_and_not_shown(version: str) -> None:
    with Releases("missing") as releases:
        base = releases.base.replace("://", "://user:pass-word@")
        with pytest.raises(HarnessError) as failed:
            await _setup(version, base)
        assert "pass-word" not in str(failed.value)
        assert "127.0.0.1" in str(failed.value)
        releases.kind = "good"
        await _setup(version, base)
        assert all(login.startswith("Basic ") for login in releases.logins)
