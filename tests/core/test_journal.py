"""The journal survives kills, full disks and removed directories; what was written is never lost."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vf_core.errors import RunDirError
from vf_core.events import types as ev
from vf_core.events.codec import encode
from vf_core.events.journal import JournalWriter, read_journal
from vf_core.events.lines import LineReader, read_lines, repair


def log(n: int, text: str = "é\u2028 \ud800") -> ev.Log:
    return ev.Log(level="info", message=f"{n} {text}", seq=n, t=float(n))


def written(path: Path, *events: ev.Event) -> None:
    writer = JournalWriter(path)
    for event in events:
        writer.append(event)
    writer.close()


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = [log(n) for n in range(1, 10_001)]
    written(path, *events)
    assert list(read_journal(path)) == events
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_line_is_on_disk_soon_without_a_close(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    writer = JournalWriter(path)
    writer.append(log(1))
    async with asyncio.timeout(60):
        while not path.stat().st_size:
            await asyncio.sleep(0.01)
    assert list(read_journal(path)) == [log(1)]
    writer.close()
    writer.close()
    writer.append(log(2))
    assert list(read_journal(path)) == [log(1)]


def test_x01_a_cut_at_any_byte_costs_at_most_the_line_it_cuts(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    written(path, log(1), log(2), log(3))
    whole = path.read_bytes()
    ends = [n + 1 for n, byte in enumerate(whole) if byte == 10]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = sum(end <= cut for end in ends)
        # A line that lacks only its newline is whole.
        kept += cut + 1 in ends
        assert list(read_journal(path)) == [log(n + 1) for n in range(kept)]
        writer = JournalWriter(path)
        torn = whole[:cut][ends[kept - 1] if kept else 0 :] if cut + 1 not in ends else b""
        assert (writer.torn is not None) == bool(torn)
        if writer.torn is not None:
            assert writer.torn.read_bytes() == torn
            writer.torn.unlink()
        writer.append(log(9))
        writer.close()
        assert list(read_journal(path)) == [*(log(n + 1) for n in range(kept)), log(9)]


@given(st.binary(max_size=300))
@settings(max_examples=60)
def test_x01_whatever_the_file_holds_appending_is_safe(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("journal") / "events.jsonl"
    good = encode(log(1)).encode() + b"\n"
    path.write_bytes(good + junk)
    written(path, log(2))
    events = list(read_journal(path))
    assert (events[0], events[-1]) == (log(1), log(2))
    aside = b"".join(p.read_bytes() for p in path.parent.glob("*.torn-*"))
    kept = path.read_bytes().removesuffix(encode(log(2)).encode() + b"\n")
    assert kept + aside in (good + junk, good + junk + b"\n")


def test_torn_tails_are_each_set_aside_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for n in range(3):
        with path.open("ab") as file:
            file.write(b'{"torn": %d' % n)
        repair(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["events.jsonl"] + [
        f"events.jsonl.torn-{n}" for n in (1, 2, 3)
    ]
    assert (tmp_path / "events.jsonl.torn-3").read_bytes() == b'{"torn": 2'
    assert (tmp_path / "events.jsonl.torn-1").stat().st_mode & 0o777 == 0o600


def test_x02_other_line_separators_separate_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = ["a\u0085b", "a\u2028b\u2029c", "a\fb\x1cc", "a\rb"]
    path.write_bytes("".join(f'"{line}"\n' for line in lines).encode())
    assert [line.decode() for line in read_lines(path)] == [f'"{line}"' for line in lines]


def test_a_line_longer_than_a_helping_comes_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = [b"x" * 50, b"y" * 5_000, b"", b"z"]
    path.write_bytes(b"\n".join(lines) + b"\ntorn")
    reader = LineReader(path)
    got: list[bytes] = []
    while more := reader.read(16):
        got += more
    assert got == lines
    assert reader.rest() == b"torn"
    with path.open("ab") as file:
        file.write(b" no more\n")
    assert reader.read(16) == [b"torn no more"]


def test_lines_of_no_sense_in_the_middle_cost_only_themselves(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    middle = [b"", b"\0" * 40, b"{", b'{"type":"log"}', b"\xff\xfe", b'{"type":"new","x":1}']
    path.write_bytes(b"\n".join([encode(log(1)).encode(), *middle, encode(log(2)).encode()]) + b"\n")
    assert list(read_journal(path)) == [log(1), log(2)]


_WRITE_FOR_EVER = """
import sys, time
from pathlib import Path
from vf_core.events import types as ev
from vf_core.events.journal import JournalWriter
writer = JournalWriter(Path(sys.argv[1]))
n = 0
while True:
    n += 1
    writer.append(ev.Log(level="info", message=f"{n} " + "\\u2028é" * 50, seq=n))
    time.sleep(0.0002)
"""


def test_x01_a_killed_writer_leaves_a_valid_journal_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    before = 0
    for _ in range(3):
        size = path.stat().st_size if path.exists() else 0
        with subprocess.Popen([sys.executable, "-c", _WRITE_FOR_EVER, str(path)]) as process:
            while not path.exists() or path.stat().st_size < size + 10_000:
                assert process.poll() is None
            process.send_signal(signal.SIGKILL)
        events = [event.seq for event in read_journal(path)]
        new = events[before:]
        assert new == list(range(1, len(new) + 1))
        before = len(events)
    assert before > 0


_FULL = """
import resource, signal, sys
from pathlib import Path
from vf_core.events import types as ev
from vf_core.events.journal import JournalWriter, read_journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, told = Path(sys.argv[1]), []
def numbers():
    return [event.seq for event in read_journal(path)]
def write(writer, first, last, until):
    for n in range(first, last):
        writer.append(ev.Log(level="info", message="m" * 90, seq=n))
    while not until(): pass
writer = JournalWriter(path, on_error=told.append)
write(writer, 1, 50, lambda: numbers() == list(range(1, 50)))
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
write(writer, 50, 300, lambda: told)
assert numbers() == list(range(1, 50)) and path.read_bytes().endswith(b"\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.append(ev.Log(level="info", message="room again", seq=300))
writer.close()
assert writer.error is None and len(told) == 1
assert numbers() == list(range(1, 301))
"""


def test_x08_a_full_disk_is_told_once_and_the_file_stays_valid(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path / "events.jsonl")],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


async def test_x08_a_removed_directory_is_told_once_on_the_loop(tmp_path: Path) -> None:
    told: asyncio.Queue[OSError] = asyncio.Queue()
    folder = tmp_path / "run"
    folder.mkdir()
    writer = JournalWriter(folder / "events.jsonl", on_error=told.put_nowait)
    writer.append(log(1))
    shutil.rmtree(folder)
    writer.append(log(2))
    error = await asyncio.wait_for(told.get(), 60)
    assert "removed" in str(error)
    writer.append(log(3))
    await asyncio.to_thread(writer.close)
    assert told.empty()


def test_x08_a_disk_that_stays_full_costs_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vf_core.events.journal.HELD", 50_000)
    path = tmp_path / "events.jsonl"
    writer = JournalWriter(path)
    path.unlink()
    for n in range(2_000):
        writer.append(log(n + 1, "m" * 100))
        if n % 100 == 0:
            writer._flush()
    writer._flush()
    assert sum(map(len, writer._held)) <= 50_000
    assert writer.lost > 1_000
    writer.close()


def test_a_journal_that_cannot_be_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "events.jsonl", tmp_path / "none" / "events.jsonl", tmp_path):
        with pytest.raises(RunDirError, match="journal"):
            JournalWriter(path)
    with pytest.raises(RunDirError, match="cannot read"):
        list(read_journal(tmp_path / "none"))


def test_no_file_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    for _ in range(20):
        written(tmp_path / "events.jsonl", log(1))
    assert len(os.listdir("/dev/fd")) == before
