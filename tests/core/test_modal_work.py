"""Commands, files and ports of Modal sandboxes where the provider is slow, fails, or ends the sandbox."""

from __future__ import annotations

import asyncio
import threading

import pytest
from grpclib import Status
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from doubles.modal import kit
from doubles.modal.state import Result
from doubles.sandbox_commands import Output, sh
from vf_core.errors import SandboxError
from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.modal import account
from vf_core.runtimes.modal.command import EndCutter, end_of
from vf_core.runtimes.modal.runtime import ModalRuntime


@pytest.fixture
def double(monkeypatch):
    yield from kit.serving(monkeypatch)


@pytest.fixture
async def box(double):
    box = kit.runtime(expose_ports=[8000])
    await box.start()
    yield box
    double.faults.clear()
    await box.stop_confirmed()


async def started(box, command: str = "echo up; sleep 600"):
    """A program that runs, and what it printed."""
    output = Output()
    running = asyncio.ensure_future(box.run_program(sh(command), on_output=output))
    await asyncio.wait_for(output.came.wait(), 60)
    return running, output


# ---------------------------------------------------------------------- the sandbox ends first


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (Result.GENERIC_STATUS_TIMEOUT, 0, "lifetime"),
        (Result.GENERIC_STATUS_IDLE_TIMEOUT, 0, "idle"),
        (Result.GENERIC_STATUS_KERNEL_OOM_KILL, 137, "out of memory"),
        (Result.GENERIC_STATUS_INTERNAL_FAILURE, 0, "Modal failed"),
        (Result.GENERIC_STATUS_TERMINATED, 0, "terminated"),
    ],
)
async def test_a_sandbox_that_ends_under_a_program_is_lost_and_why_is_told(double, box, status, code, words):
    """R16, R19: by its status, whatever exit code comes with it."""
    running, _ = await started(box)
    double.expire(box.sandbox_id, status, code)
    with pytest.raises(SandboxError, match=words):
        await asyncio.wait_for(running, 60)
    assert box.state is State.UNKNOWN
    with pytest.raises(SandboxError, match="UNKNOWN"):
        await box.run(["true"])


async def test_a_lifetime_that_is_over(monkeypatch):
    """R19: the provider's own timer."""
    for double in kit.serving(monkeypatch, speed=60):
        box = kit.runtime(timeout=60, idle_timeout=60)
        await box.start()
        running, _ = await started(box)
        with pytest.raises(SandboxError, match="lifetime"):
            await asyncio.wait_for(running, 60)
        await box.stop_confirmed()
        assert double.live() == []


async def test_an_end_that_the_stream_does_not_tell_is_found_by_asking(double, box, monkeypatch):
    """R16: the connection stays open and nothing comes."""
    monkeypatch.setattr(ModalRuntime, "liveness", 0.2)
    double.faults.add("^TaskExecWait$", "hang", seconds=600, times=-1)
    assert (await asyncio.wait_for(box.run(sh("echo word; exit 3")), 60)).exit_code == 3
    running, _ = await started(box)
    double.expire(box.sandbox_id)
    with pytest.raises(SandboxError, match="lifetime"):
        await asyncio.wait_for(running, 60)


async def test_a_provider_that_says_nothing_for_long_is_given_up(double, box, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ModalRuntime, "liveness", 0.1)
        patch.setattr(ModalRuntime, "silence", 1.0)
        running, _ = await started(box)
        patch.setattr(account, "TERMINATE", 0.2)
        patch.setattr(account, "TRIES", 1)
        double.faults.add("^SandboxWaitV2$", "hang", seconds=600, times=-1)
        with pytest.raises(SandboxError, match="has not said"):
            await asyncio.wait_for(running, 60)
    assert box.state is State.UNKNOWN


async def test_a_short_silence_costs_nothing(double, box, monkeypatch):
    monkeypatch.setattr(ModalRuntime, "liveness", 0.1)
    double.faults.add("^SandboxWaitV2$", "status", status=Status.UNAVAILABLE.value, times=6)
    running, output = await started(box, "echo up; until [ -e go ]; do sleep 0.02; done; echo end")
    async with asyncio.timeout(60):
        while double.faults.count("^SandboxWaitV2$") < 7:
            await asyncio.sleep(0.02)
    await box.write("go", b"")
    assert (await asyncio.wait_for(running, 60)).exit_code == 0
    assert output.streams["stdout"] == b"up\nend\n"


async def test_a_time_limit_holds_while_the_provider_hangs(double, box, monkeypatch):
    monkeypatch.setattr(ModalRuntime, "liveness", 0.1)
    double.faults.add("^SandboxWaitV2$", "hang", seconds=600, times=-1)
    result = await asyncio.wait_for(box.run(sh("echo word; sleep 600"), timeout=1), 60)
    assert (result.exit_code, result.timed_out, result.stdout) == (124, True, "word\n")


# ---------------------------------------------------------------------- streams


async def test_output_is_whole_across_lost_connections(double, box):
    """By offset: nothing twice, nothing missing, bytes as they are (R12)."""
    double.faults.add("^TaskExecStdioRead$", "cut", seconds=0.2)
    double.faults.add("^TaskExecStdioRead$", "cut", seconds=0.2)
    program = (
        "import os, time\nfor n in range(40):\n  os.write(1, bytes([n, 255, 0]) * 50); time.sleep(0.02)\n"
    )
    output = Output()
    result = await box.run_program(["python3", "-c", program], on_output=output)
    assert result.exit_code == 0
    assert output.streams["stdout"] == b"".join(bytes([n, 255, 0]) * 50 for n in range(40))


async def test_output_that_is_lost_is_said_to_be(double, box):
    """The command's end still counts; a file that was read in part does not."""
    await box.write("file", b"data")
    double.faults.add("^TaskExecStdioRead$", "status", status=Status.PERMISSION_DENIED.value, times=2)
    result = await box.run(sh("echo word; exit 4"))
    assert result.exit_code == 4
    assert result.truncated
    assert "cut off" in result.stderr
    double.faults.add("^TaskExecStdioRead$", "status", status=Status.PERMISSION_DENIED.value, times=2)
    with pytest.raises(SandboxError, match="in part only"):
        await box.read("file")


async def test_a_command_that_cannot_be_started(double, box):
    double.faults.add("^TaskExecStart$", "status", status=Status.PERMISSION_DENIED.value)
    with pytest.raises(SandboxError, match="could not be started"):
        await box.run(["true"])
    assert (await box.run(["true"])).exit_code == 0


async def test_output_comes_on_the_loop_of_the_caller(box):
    """U14: the SDK has a thread of its own."""
    seen = set()
    await box.run_program(sh("echo out; echo err >&2"), on_output=lambda *_: seen.add(threading.get_ident()))
    assert seen == {threading.get_ident()}


_END = end_of("0123456789abcdef")
_piece = st.one_of(
    st.binary(max_size=12), st.integers(0, len(_END) - 1).map(lambda n: _END[:n]), st.just(_END[1:])
)


@settings(max_examples=150)
@given(st.lists(_piece, max_size=8).map(b"".join), st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_the_mark_of_the_end_is_found_however_it_is_cut(data, sizes):
    """R12: what was before it comes whole, without it what was held back comes at last."""
    assume(_END[:-1] not in data)
    for tail in (_END + b"after", b""):
        whole, cutter, got, ended, at, turn = data + tail, EndCutter(_END), b"", False, 0, 0
        while at < len(whole) and not ended:
            size = sizes[turn % len(sizes)]
            piece, ended = cutter.feed(whole[at : at + size])
            got, at, turn = got + piece, at + size, turn + 1
        assert ended == bool(tail)
        assert got + cutter.rest() == data


# ---------------------------------------------------------------------- arguments, files, ports


async def test_arguments_beyond_the_requests_limit_go_by_file(box):
    text = 'it\'s "$(true)" ü\n' * 6000
    result = await box.run(["sh", "-c", 'printf %s "$1" | wc -c; ls -a "$TMPDIR"', "sh", text])
    assert result.exit_code == 0, result.stderr
    assert int(result.stdout.split()[0]) == len(text.encode())
    assert ".vf-tui-" not in result.stdout


async def test_an_argument_that_no_system_takes(box):
    result = await box.run(["echo", "x" * 300_000])
    assert result.exit_code == 126


async def test_the_sandbox_has_no_secrets_of_this_host(double, monkeypatch):
    """S01: neither what it is asked to be nor its programs hold any."""
    monkeypatch.setenv("OPENAI_API_KEY", "canary-77aa")
    box = kit.runtime()
    await box.start()
    seen = (await box.run(["env"], {"ONE": "given"})).stdout
    made = double.world.sandboxes[box.sandbox_id]
    for secret in ("as-test", "canary-77aa"):
        assert secret not in seen
        assert secret not in str(made.definition) + str(made.tags)
    assert "given" not in str(made.definition) + str(made.tags)
    await box.stop_confirmed()


@pytest.mark.parametrize(
    "workdir", ["/deep/er/place", "/with space/$(touch x)`touch x`;'q\"&*", "/new\nline"]
)
async def test_s05_the_working_directory_is_made_as_it_is_called(double, tmp_path, workdir):
    workdir = f"{tmp_path}{workdir}"
    box = kit.runtime(workdir=workdir)
    await box.start()
    assert (await box.run(["pwd"])).stdout.endswith(f"{workdir}\n")
    await box.write("file", b"x")
    assert (await box.run(["ls", "-A", "."])).stdout == "file\n"
    assert await box.read(f"{workdir}/file") == b"x"
    await box.stop_confirmed()


async def test_only_named_ports_are_exposed(box):
    assert await box.expose(8000) == "https://127.0.0.1:8000"
    with pytest.raises(SandboxError, match="expose_ports"):
        await box.expose(8001)


def test_this_hosts_loopback_is_out_of_reach():
    box = kit.runtime()
    assert box.host_url("https://x.example:8443/v1") == "https://x.example:8443/v1"
    for url in ("http://127.0.0.1:80/v1", "http://localhost/v1", "http://[::1]:3/", "http://0.0.0.0:1/"):
        with pytest.raises(SandboxError, match="tunnel"):
            box.host_url(url)
    assert not box.is_local


async def test_a_forced_stop_waits_for_no_program(double, box):
    running, _ = await started(box, "trap '' TERM; echo up; while :; do sleep 0.1; done")
    box.force()
    await box.stop_confirmed()
    assert (await asyncio.wait_for(running, 60)).exit_code == 137
    assert double.live() == []


async def test_a_program_that_does_not_end_when_asked_ends_with_its_sandbox(double, box):
    running, _ = await started(box, "trap '' TERM; echo up; while :; do sleep 0.1; done")
    await box.stop_confirmed()
    assert (await asyncio.wait_for(running, 60)).exit_code == 137
    assert double.live() == []
