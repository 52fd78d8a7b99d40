"""Output logs: whole, bounded, and never in anybody's way."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vf_core.runs import output
from vf_core.runs.layout import RunDir
from vf_core.runs.output import OutputReader, tail


def made(tmp_path: Path, **options: object) -> RunDir:
    run = RunDir(tmp_path / "run", **options)  # type: ignore[arg-type]
    run.logs.mkdir(parents=True)
    return run


async def test_50_megabytes_are_kept_whole(tmp_path: Path) -> None:
    run = made(tmp_path)
    log = run.open_output("r", 1)
    chunk = random.Random(1).randbytes(64 << 10)
    for n in range(800):
        log.write("stdout" if n % 2 else "stderr", chunk)
        if n % 50 == 0:
            await asyncio.sleep(0)
    await log.close()
    for path in (run.stdout_log("r", 1), run.stderr_log("r", 1)):
        assert path.stat().st_size == 400 * len(chunk)
        assert path.read_bytes() == chunk * 400


async def test_the_thread_ends_with_the_last_log_and_comes_back(tmp_path: Path) -> None:
    run = made(tmp_path)
    for attempt in range(1, 4):
        logs = [run.open_output(f"r{n}", attempt) for n in range(3)]
        for log in logs:
            log.write("stdout", b"hello")
        await asyncio.gather(*(log.close() for log in logs))
        await asyncio.gather(*(log.close() for log in logs))
        assert run.stdout_log("r2", attempt).read_bytes() == b"hello"
        async with asyncio.timeout(60):
            while any(thread.name == "output" for thread in threading.enumerate()):
                await asyncio.sleep(0.01)
    logs[0].write("stdout", b"too late")
    assert run.stdout_log("r0", 3).read_bytes() == b"hello"


async def test_no_output_makes_no_file(tmp_path: Path) -> None:
    run = made(tmp_path)
    log = run.open_output("r", 1)
    log.write("stdout", b"")
    await log.close()
    assert not list(run.logs.rglob("*.log"))


async def test_a_cancelled_close_still_closes(tmp_path: Path) -> None:
    run = made(tmp_path)
    log = run.open_output("r", 1)
    log.write("stdout", b"hello")
    closing = asyncio.create_task(log.close())
    await asyncio.sleep(0)
    closing.cancel()
    await log.close()
    assert run.stdout_log("r", 1).read_bytes() == b"hello"


async def test_x08_a_log_that_cannot_be_written_is_told_once_and_stops_nobody(tmp_path: Path) -> None:
    told: asyncio.Queue[OSError] = asyncio.Queue()
    run = made(tmp_path, on_output_error=told.put_nowait)
    shutil.rmtree(run.path)
    logs = [run.open_output(f"r{n}", 1) for n in range(3)]
    for log in logs:
        log.write("stdout", b"lost")
        log.write("stderr", b"lost")
    for log in logs:
        await log.close()
    assert isinstance(await asyncio.wait_for(told.get(), 60), FileNotFoundError)
    assert told.empty()


async def test_one_program_cannot_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "LIMIT", 10_000)
    run = made(tmp_path)
    log = run.open_output("r", 1)
    for _ in range(100):
        log.write("stdout", b"x" * 1_000)
    log.write("stderr", b"still heard")
    await log.close()
    text = run.stdout_log("r", 1).read_text()
    assert text.startswith("x" * 10_000)
    assert text.endswith("[… 90000 more bytes of output are not kept …]\n")
    assert run.stderr_log("r", 1).read_text() == "still heard"


async def test_a_disk_that_hangs_holds_neither_the_loop_nor_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "BACKLOG", 10_000)
    monkeypatch.setattr(output, "PATIENCE", 0.001)
    going = threading.Event()
    write = os.write

    def hang(fd: int, data: bytes) -> int:
        if threading.current_thread().name == "output":
            going.wait(30)
        return write(fd, data)

    monkeypatch.setattr("vf_core.runs.output.os.write", hang)
    run = made(tmp_path)
    log = run.open_output("r", 1)
    for _ in range(5_000):
        log.write("stdout", b"x" * 100)
    going.set()
    await log.close()
    text = run.stdout_log("r", 1).read_text()
    kept = text.count("x")
    assert 10_000 <= kept < 30_000
    assert f"[… {500_000 - kept} bytes of output could not be written …]" in text


@given(st.text(max_size=60), st.lists(st.integers(1, 5), min_size=1, max_size=80))
@settings(max_examples=100)
def test_characters_cut_by_a_read_are_put_together(
    tmp_path_factory: pytest.TempPathFactory, text: str, cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("log") / "out.log"
    data = text.encode(errors="replace")
    path.write_bytes(data)
    reader = OutputReader(path)
    got = "".join(reader.read(cut) for cut in cuts)
    while more := reader.read(3):
        got += more
    got += reader.read()
    assert got.encode() == data


def test_a_reader_follows_what_grows_and_starts_over_when_it_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    reader = OutputReader(path)
    assert reader.read() == ""
    path.write_bytes(b"one \xc3")
    assert reader.read() == "one "
    with path.open("ab") as file:
        file.write(b"\xa9\xff two")
    assert reader.read() == "é\ufffd two"
    assert reader.read() == ""
    path.write_bytes(b"new")
    assert reader.read() == "new"


def test_a_tail_begins_with_a_whole_line_where_it_can(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    path.write_bytes(b"first line\nsecond line\nthird")
    assert tail(path, 1_000) == "first line\nsecond line\nthird"
    assert tail(path, 20) == "second line\nthird"
    assert tail(path, 17) == "second line\nthird"
    assert tail(path, 16) == "third"
    assert tail(path, 3) == "ird"
    path.write_bytes("ééé".encode())
    assert tail(path, 3) == "é"
    assert tail(tmp_path / "none", 10) == ""


def test_the_tail_of_a_large_file_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.log"
    with path.open("wb") as file:
        file.seek(3 << 30)
        file.write(b"\nthe end\n")
    assert tail(path, 9) == "the end\n"
