"""What every runtime promises, as tests. Subclass it as `Test…`, say how a runtime is made, and it is held to them.

The sandbox must have a POSIX shell and Python 3 as `python3`.
"""

from __future__ import annotations

import asyncio
import shlex
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.register_assert_rewrite("doubles.lifecycle_contract")

from doubles.lifecycle_contract import LifecycleContract  # noqa: E402
from doubles.sandbox_commands import Output, long_sleep, sh  # noqa: E402
from vf_core.errors import SandboxError, SandboxFileNotFoundError, SandboxIsADirectoryError  # noqa: E402
from vf_core.runtimes.base import Runtime  # noqa: E402
from vf_core.runtimes.lifecycle import State  # noqa: E402

METACHARACTERS = "a b\n'\"$(touch hacked)`touch hacked`;touch hacked & * ? \\ ünï"
SCRIPT = """\
# /// script
# requires-python = ">=3.9"
# dependencies = []
# ///
import sys
print("ran", *sys.argv[1:])
"""


class RuntimeContract(LifecycleContract):
    """Subclasses make the runtime, not started; each test gets a live one, torn down with proof."""

    @abstractmethod
    def make(self, name: str = "contract", **options: Any) -> Runtime: ...

    @pytest.fixture
    async def box(self) -> AsyncIterator[Runtime]:
        box = self.make()
        await box.start()
        yield box
        await box.stop_confirmed()
        assert box.state is State.GONE

    # ------------------------------------------------------------------ programs

    async def test_results_of_a_command(self, box):
        result = await box.run(sh("echo out; echo err >&2; exit 3"))
        assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
        assert not result.truncated
        assert not result.timed_out

    async def test_exit_codes_are_as_shells_give_them(self, box):
        assert (await box.run(sh("kill -9 $$"))).exit_code == 137
        assert (await box.run(["no-such-program-anywhere"])).exit_code == 127
        await box.write("plain.txt", b"text")
        assert (await box.run(["./plain.txt"])).exit_code == 126

    async def test_arguments_and_variables_are_literal(self, box):
        """S05."""
        name = METACHARACTERS.replace("\n", " ")
        command = 'printf %s "$1"; printf %s "$TEXT"'
        result = await box.run(["sh", "-c", command, "sh", METACHARACTERS], {"TEXT": METACHARACTERS})
        assert result.stdout == METACHARACTERS * 2
        await box.write(f"dir {name}/file {name}", b"x")
        assert await box.read(f"dir {name}/file {name}") == b"x"
        result = await box.run(["pwd"], cwd=f"dir {name}")
        assert result.stdout.rstrip("\n").endswith(f"dir {name}")
        with pytest.raises(SandboxFileNotFoundError):
            await box.read("hacked")

    async def test_variables_are_for_one_command(self, box):
        assert (await box.run(sh("echo $WORD"), {"WORD": "hello"})).stdout == "hello\n"
        assert (await box.run(sh("echo $WORD"))).stdout == "\n"

    async def test_there_is_no_input(self, box):
        """R14."""
        result = await box.run(sh("cat; read line || echo end; python3; tty; stty -a"), timeout=20)
        assert not result.timed_out
        assert "end" in result.stdout
        assert "not a tty" in result.stdout

    async def test_any_bytes_become_text(self, box):
        """R12: bytes that are no UTF-8."""
        result = await box.run(["python3", "-c", "import os; os.write(1, bytes(range(256)) * 20)"])
        assert result.exit_code == 0
        assert "\ufffd" in result.stdout
        result.stdout.encode()

    async def test_a_character_in_three_writes(self, box):
        """R12."""
        program = "import os,time\nfor b in '€'.encode(): os.write(1, bytes([b])); time.sleep(0.05)"
        output = Output()
        result = await box.run_program(["python3", "-c", program], on_output=output)
        assert bytes(output.streams["stdout"]).decode() == "€"
        assert result.stdout == "€"
        assert (await box.run(["python3", "-c", program])).stdout == "€"

    async def test_output_comes_while_the_program_runs(self, box):
        output = Output()
        program = sh("echo first; until [ -e go ]; do sleep 0.02; done; echo second >&2")
        running = asyncio.ensure_future(box.run_program(program, on_output=output))
        await asyncio.wait_for(output.came.wait(), 60)
        assert output.streams["stdout"] == b"first\n"
        assert not running.done()
        await box.write("go", b"")
        result = await asyncio.wait_for(running, 60)
        assert (result.exit_code, output.streams["stderr"]) == (0, b"second\n")

    async def test_very_long_lines(self, box):
        """R11."""
        program = "import sys; w=sys.stdout.write; w('x' * (1 << 20)); w('\\nnormal\\n'); w('y' * (1 << 20))"
        output = Output()
        result = await box.run_program(["python3", "-c", program], on_output=output)
        lines = bytes(output.streams["stdout"]).split(b"\n")
        assert [len(line) for line in lines] == [1 << 20, 6, 1 << 20]
        assert result.exit_code == 0
        assert result.truncated
        assert len(result.stdout) < 100_000
        assert result.stdout.endswith("y")

    @pytest.mark.parametrize("ending", ["normal", "timeout"])
    async def test_much_output_is_cut_the_same_way_however_it_ends(self, box, ending):
        """R13."""
        wait = "" if ending == "normal" else "; time.sleep(600)"
        program = (
            "import os,time\nos.write(1, b'HEAD')\nfor _ in range(160): os.write(1, b'z' * 65536)\n"
            f"os.write(1, b'TAIL'); open('written', 'w'){wait}"
        )
        running = asyncio.ensure_future(
            box.run(["python3", "-c", program], limit=1000, timeout=None if ending == "normal" else 6)
        )
        result = await running
        assert result.timed_out == (ending == "timeout")
        assert result.truncated
        assert result.stdout.startswith("HEAD")
        assert result.stdout.endswith("TAIL")
        assert f"[… {160 * 65536 + 8 - 1000} bytes left out …]" in result.stdout
        assert len(result.stdout) < 1100

    async def test_a_time_limit_ends_all_that_the_command_started(self, box):
        """R08, with what it printed before."""
        sleep = long_sleep()
        command = f"echo started; {sleep} & ({sleep} &) ; setsid {sleep} & wait"
        result = await box.run(sh(command), timeout=0.5)
        assert (result.exit_code, result.timed_out, result.stdout) == (124, True, "started\n")
        assert await self.running(box, sleep) == 0
        assert (await box.run(["echo", "usable"])).stdout == "usable\n"

    async def test_a_cancelled_command_is_ended(self, box):
        output, sleep = Output(), long_sleep()
        running = asyncio.ensure_future(
            box.run_program(sh(f"echo started; setsid {sleep} & {sleep}"), on_output=output)
        )
        await asyncio.wait_for(output.came.wait(), 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await self.running(box, sleep) == 0

    async def test_a_result_comes_at_exit_and_not_at_the_end_of_output(self, box):
        """R10: a background child holds the pipe."""
        sleep = long_sleep()
        result = await asyncio.wait_for(box.run(sh(f"{sleep} & echo word")), 60)
        assert (result.exit_code, result.stdout) == (0, "word\n")
        assert await self.running(box, sleep) == 1

    async def test_a_background_program_runs_until_the_stop(self, box):
        sleep = long_sleep()
        await box.run_background(sh(f"echo ready; exec {sleep}"), log="logs/server.log")
        await self.until(box, sh("grep -q ready logs/server.log"))
        assert await self.running(box, sleep) == 1

    async def test_a_stopped_program_says_how_it_ended(self, box):
        output = Output()
        program = sh("trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done")
        running = asyncio.ensure_future(box.run_program(program, on_output=output))
        await asyncio.wait_for(output.came.wait(), 60)
        await box.stop()
        assert (await asyncio.wait_for(running, 60)).exit_code == 7

    async def test_a_silent_setup_is_not_cut_off(self, box):
        """R37: only the command's own limit counts, not its silence."""
        result = await box.run(sh("sleep 1.5; echo done > result"), timeout=60)
        assert result.exit_code == 0
        assert await box.read("result") == b"done\n"

    async def test_a_python_script(self, box):
        argv = await box.prepare_script(SCRIPT)
        assert await box.prepare_script(SCRIPT) == argv
        result = await box.run([*argv, "one", "--two"])
        assert (result.exit_code, result.stdout) == (0, "ran one --two\n"), result.stderr

    # ------------------------------------------------------------------ files

    @pytest.mark.parametrize("path", ["file.bin", "deep/er/file.bin", "./dot/../file.bin"])
    @pytest.mark.parametrize("data", [b"", b"text\n", bytes(range(256)) * 4096])
    async def test_files_by_relative_path(self, box, path, data):
        """R22."""
        if "dot" in path:
            await box.run(["mkdir", "-p", "dot"])
        await box.write(path, b"longer than nothing" * 100)
        await box.write(path, data)
        assert await box.read(path) == data
        assert (await box.run(sh(f"wc -c < {path}"))).stdout.strip() == str(len(data))

    async def test_files_by_absolute_path(self, box):
        """R22."""
        here = (await box.run(["pwd"])).stdout.strip()
        await box.write(f"{here}/sub/file", b"data")
        assert await box.read("sub/file") == b"data"
        assert await box.read(f"{here}/sub/file") == b"data"

    async def test_missing_files(self, box):
        """R22."""
        await box.write("file", b"")
        for path in ("missing", "no/such/dir", "/no/such/file", "file/below"):
            with pytest.raises(SandboxFileNotFoundError):
                await box.read(path)
            with pytest.raises(SandboxFileNotFoundError):
                await box.read_bounded(path, 10)

    async def test_directories_are_no_files(self, box):
        """R22."""
        await box.run(["mkdir", "dir"])
        for path in ("dir", ".", "/"):
            with pytest.raises(SandboxIsADirectoryError):
                await box.read(path)
            with pytest.raises(SandboxIsADirectoryError):
                await box.write(path, b"x")

    async def test_the_beginning_of_a_long_file(self, box):
        await box.run(["python3", "-c", "open('big', 'w').write('ab' * (5 << 20))"])
        assert await box.read_bounded("big", 3) == b"aba"
        assert len(await box.read_bounded("big", 1 << 30)) == 10 << 20
        assert await box.read_bounded("big", 0) == b""

    async def test_a_fifo_does_not_hold_the_reader(self, box):
        await box.run(["mkfifo", "pipe"])
        with pytest.raises(SandboxError):
            await asyncio.wait_for(box.read("pipe"), 60)
        with pytest.raises(SandboxError):
            await asyncio.wait_for(box.write("pipe", b"x"), 60)

    async def test_paths_that_are_none(self, box):
        with pytest.raises(SandboxError):
            await box.read("a\0b")
        with pytest.raises(SandboxError):
            await box.run(["true"], cwd="no/such/dir")
        with pytest.raises(SandboxError):
            await box.run([])

    # ------------------------------------------------------------------ lifecycle

    async def test_nothing_is_left_after_the_stop(self):
        """R08, R10: grandchildren, sessions of their own, those that ignore being asked."""
        box = self.make()
        await box.start()
        await box.run(sh("sleep 604 & (setsid sleep 604 &) ; nohup sleep 604 >/dev/null 2>&1 &"))
        await box.run_background(sh("trap '' TERM; while :; do sleep 0.1; done"))
        await box.stop_confirmed()
        assert box.state is State.GONE
        assert box.proof
        with pytest.raises(SandboxError):
            await box.run(["true"])
        with pytest.raises(SandboxError):
            await box.read("file")

    async def test_commands_at_once_do_not_meet(self, box):
        names = [f"n{n}" for n in range(16)]
        command = 'echo "$1"; echo "$1" >&2; echo "$1" > "$1"'
        results = await asyncio.gather(*(box.run(["sh", "-c", command, "sh", name]) for name in names))
        assert [(r.exit_code, r.stdout, r.stderr) for r in results] == [
            (0, f"{n}\n", f"{n}\n") for n in names
        ]
        files = await asyncio.gather(*(box.read(name) for name in names))
        assert files == [f"{name}\n".encode() for name in names]

    async def test_a_command_that_is_cancelled_at_once(self, box):
        sleep = long_sleep()
        for _ in range(3):
            running = asyncio.ensure_future(box.run(sleep.split()))
            await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert await self.running(box, sleep) == 0

    async def test_what_the_record_says(self, box):
        info = box.info()
        assert (info["type"], info["id"]) == (box.kind, box.sandbox_id)
        assert None not in info.values()

    # ------------------------------------------------------------------ for the tests

    async def running(self, box: Runtime, command: str) -> int:
        """How many processes run exactly `command` inside the sandbox."""
        script = (
            "import glob,sys\nn=0\nfor f in glob.glob('/proc/[0-9]*/cmdline'):\n"
            "  try: n += open(f,'rb').read().split(b'\\0')[:-1] == [a.encode() for a in sys.argv[1:]]\n"
            "  except OSError: pass\nprint(n)"
        )
        return int((await box.run(["python3", "-c", script, *shlex.split(command)])).stdout)

    async def until(self, box: Runtime, command: list[str]) -> None:
        """Wait until `command` succeeds."""
        async with asyncio.timeout(60):
            while (await box.run(command)).exit_code != 0:
                await asyncio.sleep(0.02)
