"""Commands of the agent's: bounds on output, time and memory, and what is left running."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vf_core.harnesses.program import shell
from vf_core.harnesses.program.shell import RESULT_LIMIT, BoundedOutput, run_command

MARK = "bytes left out"


@settings(max_examples=80)
@given(st.lists(st.binary(max_size=60), max_size=20), st.integers(2, 80))
def test_output_keeps_head_and_tail_of_any_length(pieces: list[bytes], limit: int) -> None:
    output = BoundedOutput(limit)
    for piece in pieces:
        output.add(piece)
    raw = b"".join(pieces)
    half = limit // 2
    if len(raw) <= 2 * half:
        assert output.text() == raw.decode(errors="replace")
        return
    head, _, tail = output.text().partition("\n[… ")
    count, _, tail = tail.partition(f" {MARK} …]\n")
    assert int(count.replace(",", "")) == len(raw) - 2 * half
    assert len(head) <= half
    assert len(tail) <= half


def test_a_cut_leaves_no_half_characters() -> None:
    output = BoundedOutput(1001)
    output.add("€".encode() * 1000)
    assert "\ufffd" not in output.text()


@pytest.mark.parametrize("ending", ["", "; sleep 60"], ids=["by itself", "by a timeout"])
def test_fifty_megabytes_are_bounded_in_the_same_way_however_the_command_ends(ending: str) -> None:
    """R13."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    echoed = []
    command = "head -c 52428800 /dev/zero | tr '\\0' x; echo the end" + ending
    text = run_command(command, seconds=3.0 if ending else 120.0, echo=lambda data: echoed.append(len(data)))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert MARK in text
    assert ("timed out after 3 s" in text) is bool(ending)
    assert RESULT_LIMIT - 200 < len(text.encode()) < RESULT_LIMIT + 300
    assert grown < 200
    if not ending:
        assert text.endswith("xthe end\n")
        assert sum(echoed) == 50 * 1024 * 1024 + len("the end\n")


def test_a_timeout_kills_the_whole_process_group_and_keeps_what_was_printed(tmp_path: Path) -> None:
    command = f"echo begun; (sleep 77 & echo $! >{tmp_path}/pid; wait) | cat"
    text = run_command(command, seconds=1.0)
    assert text.startswith("begun\n[timed out after 1 s")
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
    pytest.fail("the command's child is still there")


def test_what_is_left_in_the_background_is_not_waited_for_and_not_killed(tmp_path: Path) -> None:
    text = run_command(
        f"(while true; do echo tick; sleep 0.05; done) & echo $! >{tmp_path}/pid; echo up", seconds=60.0
    )
    pid = int((tmp_path / "pid").read_text())
    try:
        assert "up" in text
        assert "timed out" not in text
        os.kill(pid, 0)
    finally:
        os.kill(pid, 9)


@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("printf out; printf err >&2", "outerr"),
        ("exit 3", "[exit code 3]"),
        ("echo x; false", "x\n[exit code 1]"),
        ("kill -9 $$", "[killed by signal 9]"),
        ("printf '\\377\\303'", "\ufffd\ufffd"),
    ],
)
def test_results(command: str, result: str) -> None:
    assert run_command(command) == result


@pytest.mark.parametrize("command", ["a\0b", "echo \udcff\ud800"])
def test_a_command_that_cannot_be_started_is_an_error_result(command: str) -> None:
    assert run_command(command).startswith("error: the command could not be started")


def test_no_bash_is_an_error_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_command("true").startswith("error: the command could not be started")


def test_a_command_goes_on_when_nobody_listens_to_its_output_any_more() -> None:
    def broken(data: bytes) -> None:
        raise BrokenPipeError

    text = run_command("seq 1 100000; echo end", seconds=60.0, echo=broken)
    assert text.endswith("end\n")


def test_a_long_command_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = run_command("# " + "€" * 100_000 + f"\nls {tmp_path}; cat; echo $0 ok")
    assert text.endswith(" ok\n")
    assert list(tmp_path.iterdir()) == []


def test_the_limit_of_one_argument_is_respected() -> None:
    assert shell._ARGUMENT_LIMIT < 128 * 1024
