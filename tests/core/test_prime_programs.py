"""Programs and files in a Prime sandbox while its gateway, its account or the sandbox itself fails."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from doubles.prime import kit
from doubles.prime.kit import OPERATIONS, QUICK, runtime
from doubles.prime.server import PrimeDouble
from doubles.runtime_contract import RuntimeContract
from doubles.sandbox_commands import Output, long_sleep, sh
from vf_core.errors import SandboxError, SandboxFileNotFoundError
from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.prime import commands
from vf_core.runtimes.prime.client import Executed
from vf_core.runtimes.prime.runtime import PrimeRuntime
from vf_core.runtimes.prime.sdk import CallError

EXEC = OPERATIONS["exec"]


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PrimeDouble]:
    yield from kit.serving(monkeypatch, tmp_path)


@pytest.fixture
async def box(double: PrimeDouble) -> AsyncIterator[PrimeRuntime]:
    box = runtime(pace=replace(QUICK, poll=1.0, margin=1.0, liveness=1.5))
    await box.start()
    yield box
    double.faults.clear()
    if double.state.api_key == double.options.api_key:
        await box.stop_confirmed()


async def started(box: PrimeRuntime, program: str) -> tuple[asyncio.Future, Output]:
    output = Output()
    running = asyncio.ensure_future(box.run_program(sh(program), on_output=output))
    await asyncio.wait_for(output.came.wait(), 60)
    return running, output


WORKDIRS = ["/deep/er/place", "/with space/$(touch x)`touch x`;'q\"&*", "/new\nline"]


@pytest.mark.parametrize("workdir", WORKDIRS)
async def test_s05_the_working_directory_is_made_as_it_is_called(double, tmp_path, workdir):
    workdir = f"{tmp_path}{workdir}"
    box = runtime(workdir=workdir)
    await box.start()
    assert (await box.run(["pwd"])).stdout.endswith(f"{workdir}\n")
    await box.write("file", b"x")
    assert (await box.run(["ls", "-A", "."])).stdout == "file\n"
    assert await box.read(f"{workdir}/file") == b"x"
    await box.stop_confirmed()


@pytest.mark.parametrize("there", [False, True])
async def test_s08_the_tokens_that_the_sdk_keeps_are_private(double, tmp_path, there):
    """Whatever the umask, and also in a file that another program left open to all."""
    kept = tmp_path / ".prime" / "sandbox_auth_cache.json"
    if there:
        kept.parent.mkdir()
        kept.write_text("{}")
        kept.chmod(0o666)
    old = os.umask(0)
    try:
        box = runtime()
        await box.start()
    finally:
        os.umask(old)
    assert box.sandbox_id in kept.read_text()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    await box.stop_confirmed()


# ---------------------------------------------------------------------- the connection fails


@pytest.mark.parametrize(
    "fault",
    [
        {"action": "reset_before"},
        {"action": "reset_after"},
        {"action": "status", "status": 503},
        {"action": "status", "status": 429},
        {"action": "status", "status": 500},
        {"action": "cut", "seconds": 0.05},
        {"action": "stall", "seconds": 20},
        {"action": "hang", "seconds": 20},
    ],
    ids=lambda fault: "-".join(map(str, fault.values())),
)
async def test_a_command_is_run_once_whatever_becomes_of_the_answer(double, box, fault):
    double.faults.add(EXEC, times=1 if fault.get("seconds") == 20 else 2, **fault)
    result = await box.run(sh("echo out; echo err >&2; echo ran >> count; exit 3"))
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert await box.read("count") == b"ran\n"


async def test_output_is_complete_and_in_order_across_resets(double, box):
    """Also bytes that are no text, and what is printed while nobody is connected."""
    double.faults.add(EXEC, "cut", seconds=0.08, times=6)
    program = "import os,time\nfor n in range(40): os.write(1, b'%d\\xff\\xc3(' % n); time.sleep(0.03)"
    output = Output()
    result = await box.run_program(["python3", "-c", program], on_output=output)
    assert output.streams["stdout"] == b"".join(b"%d\xff\xc3(" % n for n in range(40))
    assert result.exit_code == 0


async def test_an_expired_token_is_renewed(double, box):
    running, _ = await started(box, "echo up; until [ -e go ]; do sleep 0.02; done; echo done")
    double.expire_tokens()
    await box.write("go", b"")
    assert (await asyncio.wait_for(running, 60)).stdout == "up\ndone\n"


async def test_a_revoked_key_is_told(double, box):
    running, _ = await started(box, "echo up; sleep 600")
    double.revoke()
    double.expire_tokens()
    with pytest.raises(SandboxError, match=r"unauthorized.*PRIME_API_KEY"):
        await box.run(["true"])
    assert box.state is State.LIVE
    double.state.api_key = double.options.api_key
    await box.stop_confirmed()
    await asyncio.gather(running, return_exceptions=True)


async def test_silence_without_an_end_is_a_lost_sandbox(double, box):
    """R16: the provider stops sending in mid-exec, without closing."""
    running, _ = await started(box, "echo up; sleep 600")
    double.faults.add(EXEC, "stall", seconds=600, times=-1)
    with pytest.raises(SandboxError, match="has not answered for"):
        await asyncio.wait_for(running, 60)
    assert box.state is State.UNKNOWN
    assert "lost" in box._box.life.detail
    double.faults.clear()
    await box.stop_confirmed()


async def test_abrupt_closing_for_ever_is_a_lost_sandbox(double, box):
    """R16."""
    running, _ = await started(box, "echo up; sleep 600")
    double.faults.add(EXEC, "reset_before", times=-1)
    with pytest.raises(SandboxError, match="has not answered for"):
        await asyncio.wait_for(running, 60)
    assert box.state is State.UNKNOWN


# ---------------------------------------------------------------------- the sandbox ends


@pytest.mark.parametrize(
    ("status", "error", "text"),
    [
        ("TIMEOUT", "TIMEOUT", r"Prime ended it, TIMEOUT: it reached its lifetime \(timeout = 86400 s\)"),
        ("ERROR", "OOM_KILLED", r"Prime ended it, OOM_KILLED: it ran out of memory \(memory = 2 GB\)"),
        ("TERMINATED", "", "Prime ended it, TERMINATED"),
    ],
)
async def test_a_sandbox_that_ends_in_mid_program_says_why(double, box, status, error, text):
    """R19."""
    running, _ = await started(box, "echo up; sleep 600")
    await asyncio.to_thread(double.expire, box.sandbox_id, status, error)
    with pytest.raises(SandboxError, match=text):
        await asyncio.wait_for(running, 60)
    assert box.state is State.UNKNOWN
    for work in (box.run(["true"]), box.read("file"), box.write("file", b"")):
        with pytest.raises(SandboxError, match="UNKNOWN"):
            await work
    await box.stop_confirmed()
    assert status in box.proof


async def test_a_sandbox_that_was_deleted_by_somebody_is_lost(double, box):
    double.options.after_delete = "gone"
    running, _ = await started(box, "echo up; sleep 600")
    sandbox = double.state.sandboxes[box.sandbox_id]
    await asyncio.to_thread(lambda: double._there(double.state.destroy(sandbox)))
    with pytest.raises(SandboxError, match="404: there is no such sandbox"):
        await asyncio.wait_for(running, 60)
    await box.stop_confirmed()


async def test_a_gateway_that_says_gone_while_the_sandbox_runs_is_asked_again(double, box):
    sandbox = double.state.sandboxes[box.sandbox_id]
    sandbox.ended = True
    running = asyncio.ensure_future(box.run(["echo", "back"]))
    await asyncio.sleep(0.2)
    sandbox.ended = False
    assert (await asyncio.wait_for(running, 60)).stdout == "back\n"


# ---------------------------------------------------------------------- ends of commands


async def test_a_command_that_is_cancelled_before_its_start_arrives_never_runs(double, box):
    double.faults.add(EXEC, "hang", seconds=0.6)
    running = asyncio.ensure_future(box.run(sh("echo ran > ran; sleep 600")))
    await asyncio.sleep(0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(0.8)
    with pytest.raises(SandboxFileNotFoundError):
        await box.read("ran")


async def test_a_time_limit_holds_while_the_gateway_fails(double, box):
    running, _ = await started(box, f"echo up; {long_sleep()}")
    running.cancel()
    double.faults.add(EXEC, "reset_before", times=2)
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_command_that_is_cancelled_at_its_time_limit_is_ended(double, box):
    sleep = long_sleep()
    running = asyncio.ensure_future(box.run(sh(f"trap '' TERM; {sleep}; echo more"), timeout=0.2))
    await asyncio.sleep(0.4)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await RuntimeContract().running(box, sleep) == 0


async def test_a_cancelled_command_whose_end_fails_is_cancelled_all_the_same(double, box):
    running, _ = await started(box, "echo up; sleep 600")
    double.faults.add(EXEC, "reset_before", times=-1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)


async def test_programs_hear_interrupts(double, box):
    """A shell that starts something in the background makes it deaf for them."""
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert (await box.run(["python3", "-c", program])).stdout == "True\n"


async def test_arguments_longer_than_one_may_be(double, box):
    texts = ["x" * 100_000, "y" * 100_000]
    result = await box.run(["sh", "-c", 'echo "${#1} ${#2} $TAIL"', "sh", *texts], {"TAIL": "end"})
    assert result.stdout == "100000 100000 end\n"


async def test_an_agent_that_empties_the_temporary_directory(double, box):
    result = await box.run(sh('rm -rf "$TMPDIR"/* "$TMPDIR"/.[a-z]*; echo done'))
    assert (result.exit_code, result.stdout) == (0, "done\n")


async def test_what_commands_need_of_the_disk_is_given_back(double, box):
    root = double.state.sandboxes[box.sandbox_id].root.path
    for _ in range(5):
        await box.run(["true"])
    held = [path for path in root.glob("var/tmp/.vf-tui-*/*") if path.is_dir()]
    assert len(held) <= 1


async def test_a_background_program_that_cannot_be_started(double, box):
    with pytest.raises(SandboxError, match="no program can be started"):
        await box.run_background(["no-such-program"])


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize("size", [10, 200_000, 3_000_000])
@pytest.mark.parametrize(
    "fault",
    [
        {"action": "reset_before"},
        {"action": "reset_after"},
        {"action": "status", "status": 500},
        {"action": "cut", "seconds": 0.01},
    ],
    ids=lambda fault: "-".join(map(str, fault.values())),
)
async def test_files_survive_faults(double, box, size, fault):
    data = bytes(n * 7 % 256 for n in range(size))
    for name in ("exec", "upload"):
        double.faults.add(OPERATIONS[name], **fault)
    await box.write("dir/file", data)
    double.faults.clear()
    double.faults.add(EXEC, **fault)
    assert await box.read("dir/file") == data


async def test_transfers_that_are_refused_say_so(double, box):
    double.faults.add(OPERATIONS["upload"], "status", status=413, times=-1, body={"detail": "too large"})
    with pytest.raises(SandboxError, match=r"write .*file.*too large"):
        await box.write("file", b"x" * 100_000)


# ---------------------------------------------------------------------- the way to and from it


async def test_ports_cannot_be_published(double, box):
    with pytest.raises(SandboxError, match="cannot publish ports"):
        await box.expose(8000)


@pytest.mark.parametrize("url", ["https://tunnel.example/x/v1", "http://192.0.2.1:80/v1"])
def test_addresses_that_a_sandbox_reaches(url):
    assert runtime().host_url(url) == url


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost:1", "[::1]:1", "0.0.0.0:1", "127.9.9.9"])
def test_this_hosts_own_addresses_need_a_tunnel(host):
    with pytest.raises(SandboxError, match="tunnel"):
        runtime().host_url(f"http://{host}/v1")


# ---------------------------------------------------------------------- reports


@pytest.mark.parametrize(
    "text",
    [
        "",
        "vf-tui:",
        "vf-tui: - 0",
        "vf-tui: x 0 0\n.\n.\n",
        "vf-tui: 0 1 0\nYQ==\n",
        "Killed",
        "vf-tui: - 0 0\n.",
    ],
)
def test_a_report_that_is_cut_is_none(text):
    with pytest.raises(CallError):
        commands.parse(Executed(text, "", 0))


def test_a_place_that_cannot_be_made_is_no_reason_to_ask_again():
    with pytest.raises(CallError, match="no space left") as caught:
        commands.parse(Executed("", "mkdir: no space left", 97))
    assert caught.value.kind == "refused"
