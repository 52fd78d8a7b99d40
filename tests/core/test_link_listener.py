"""The place an engine listens at: private, short, and never taken from a live one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vf_core.config.paths import SOCKET_PATH_LIMIT
from vf_core.errors import LinkError
from vf_core.link.listener import Listener, probe, socket_path
from vf_core.link.wire import check_peer, peer_uid


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "rt"
    folder.mkdir(mode=0o700)
    return folder / "x.sock"


def leave_stale(path: Path) -> None:
    """What a killed engine leaves."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()


@pytest.fixture
def backlog_full(place: Path) -> Iterator[Path]:
    """A socket that somebody holds who takes no more connections."""
    others = []
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(place))
        sock.listen(0)
        for _ in range(8):
            other = socket.socket(socket.AF_UNIX)
            other.setblocking(False)
            others.append(other)
            try:
                other.connect(str(place))
            except BlockingIOError:
                break
        yield place
        for other in others:
            other.close()


def test_what_listens_is_private_and_gone_when_closed(place: Path) -> None:
    before = os.umask(0)
    try:
        listener = Listener(place)
    finally:
        os.umask(before)
    assert place.stat().st_mode & 0o777 == 0o600
    assert probe(place) == "live"
    listener.close()
    listener.close()
    assert not list(place.parent.iterdir())
    assert probe(place) == "none"


def test_n04_a_stale_socket_is_replaced_after_a_real_test(place: Path) -> None:
    leave_stale(place)
    assert probe(place) == "stale"
    Listener(place).close()


def test_n04_a_live_one_is_never_removed(place: Path) -> None:
    first = Listener(place)
    for _ in range(2):
        with pytest.raises(LinkError, match="another engine"):
            Listener(place)
    assert probe(place) == "live"
    first.close()


def test_n04_one_that_has_no_lock_is_not_removed_either(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(place))
        sock.listen()
        with pytest.raises(LinkError, match="another engine"):
            Listener(place)
        assert place.exists()


def test_n04_one_that_takes_no_connection_is_busy(backlog_full: Path) -> None:
    assert probe(backlog_full, timeout=0.1) == "busy"
    with pytest.raises(LinkError, match="another engine"):
        Listener(backlog_full)


@pytest.mark.parametrize("kind", ["file", "directory", "symlink", "dangling"])
def test_n07_what_somebody_else_put_there_is_neither_used_nor_removed(place: Path, kind: str) -> None:
    target = place.with_name("target")
    if kind == "file":
        place.write_text("precious")
    elif kind == "directory":
        place.mkdir()
    elif kind == "symlink":
        leave_stale(target)
        place.symlink_to(target)
    else:
        place.symlink_to(target)
    assert probe(place) == "foreign"
    with pytest.raises(LinkError, match="no socket of ours"):
        Listener(place)
    assert os.path.lexists(place)


def test_n07_a_socket_that_others_can_reach_is_not_trusted(place: Path) -> None:
    leave_stale(place)
    place.parent.chmod(0o755)
    assert probe(place) == "foreign"


def test_n07_a_lock_that_is_a_symlink_is_not_followed(place: Path, tmp_path: Path) -> None:
    place.with_suffix(".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LinkError, match="cannot listen"):
        Listener(place)
    assert not (tmp_path / "elsewhere").exists()


def test_n13_long_homes_and_runtime_directories_still_give_a_short_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 150)
    deep.mkdir(mode=0o700)
    for name in ("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(deep))
    path = socket_path("9a1d0c5e-0000-4000-8000-000000000001")
    assert len(os.fsencode(path)) <= SOCKET_PATH_LIMIT
    listener = Listener(path)
    assert probe(path) == "live"
    listener.close()


def test_n13_a_path_that_is_too_long_is_refused_with_what_to_do(place: Path) -> None:
    with pytest.raises(LinkError, match="XDG_RUNTIME_DIR"):
        Listener(place.with_name("x" * 120))


def test_n05_each_run_has_a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rt").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "rt"))
    assert socket_path("aaaa-bbbb") != socket_path("aaaa-cccc")
    assert socket_path("../../etc/x").parent == socket_path("y").parent


_START = """
import sys
from pathlib import Path
from vf_core.errors import LinkError
from vf_core.link.listener import Listener
try:
    listener = Listener(Path(sys.argv[1]))
except LinkError:
    print("refused", flush=True)
else:
    print("listens", flush=True)
input()
"""


def test_n04_of_engines_that_start_at_once_on_a_stale_place_one_listens(place: Path) -> None:
    leave_stale(place)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _START, str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    said = [process.stdout.readline() for process in started if process.stdout]
    assert sorted(said) == ["listens\n", "refused\n", "refused\n"]
    assert probe(place) == "live"
    for process in started:
        process.communicate("\n")
    # They ended without a goodbye; the place is free again.
    Listener(place).close()


def test_n07_the_user_at_the_other_end_is_known() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer_uid(one) == os.geteuid()
        check_peer(one)
    with socket.socket() as tcp, pytest.raises(LinkError):
        check_peer(tcp)
    with pytest.raises(LinkError, match="can't be told"):
        check_peer(None)


def test_t19_old_leftovers_of_killed_engines_go_and_nothing_else(place: Path) -> None:
    folder = place.parent
    live = Listener(folder / "live.sock")
    for name in ("old", "young"):
        leave_stale(folder / f"{name}.sock")
        (folder / f"{name}.lock").touch()
    for name in ("live.lock", "old.lock"):
        os.utime(folder / name, (1, 1))
    (folder / "notes.txt").touch()
    new = Listener(place)
    left = {path.name for path in folder.iterdir()}
    assert left == {"live.sock", "live.lock", "young.sock", "young.lock", "notes.txt", "x.sock", "x.lock"}
    for listener in (live, new):
        listener.close()
