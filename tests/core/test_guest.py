"""The shell that runs inside sandboxes: held to its promises on this host, by every shell that there is."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vf_core.errors import HarnessError, SandboxError, SandboxFileNotFoundError, SandboxIsADirectoryError
from vf_core.runtimes import guest
from vf_core.runtimes.scripts import Header
from vf_core.runtimes.subprocess import SubprocessConfig, SubprocessRuntime

SHELLS = {
    name: argv
    for name, argv in {
        "dash": ["dash"],
        "bash": ["bash", "--posix"],
        "busybox": ["busybox", "sh"],
    }.items()
    if shutil.which(argv[0])
}

TREE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


# A look at every process of this host is a fork each for busybox: inside its own image, containers' tests do that.
@pytest.fixture(params=[name for name in SHELLS if name != "busybox"], ids=str)
def tree_shell(request: pytest.FixtureRequest) -> list[str]:
    return SHELLS[request.param]


@pytest.fixture(params=SHELLS, ids=str)
def shell(request: pytest.FixtureRequest) -> list[str]:
    return SHELLS[request.param]


def run(shell: list[str], argv: list[str]) -> subprocess.CompletedProcess[bytes]:
    assert argv[0] == "sh"
    return subprocess.run([*shell, *argv[1:]], capture_output=True, timeout=90, check=False)


def carriers(mark: str) -> int:
    found = 0
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += f"{guest.MARK_VARIABLE}={mark}".encode() in entry.read_bytes()
        except OSError:
            continue
    return found


@pytest.mark.parametrize("grace", [0.0, 0.3])
def test_a_marked_tree_ends_whole_and_alone(tree_shell: list[str], grace: float) -> None:
    mark, other = guest.new_mark(), guest.new_mark()
    env = {**os.environ}
    tree = subprocess.Popen(
        [sys.executable, "-c", TREE],
        env=guest.marked_env(env, mark),
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    bystander = subprocess.Popen(["sleep", "600"], env=guest.marked_env(env, other), start_new_session=True)
    try:
        assert tree.stdout is not None
        assert tree.stdout.readline() == b"up\n"
        assert carriers(mark) == 2
        assert run(tree_shell, guest.kill_argv(mark, grace)).returncode == 0
        assert carriers(mark) == 0
        assert tree.wait(60) == -9
        assert bystander.poll() is None
        assert run(tree_shell, guest.kill_argv(mark)).returncode == 0
    finally:
        for process in (tree, bystander):
            process.kill()
            process.wait()


def test_what_ends_when_asked_is_not_killed(tree_shell: list[str]) -> None:
    mark = guest.new_mark()
    program = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); "
        "print('up', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=guest.marked_env(os.environ, mark), stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    assert run(tree_shell, guest.kill_argv(mark, 60)).returncode == 0
    assert process.wait() == 7


FAMILY = """
child() { trap 'echo asked >>"$1"' TERM; : >"$1"; while [ -e "$2/go" ]; do sleep 0.05 & wait; done; }
for n in 1 2 3 4 5 6 7 8; do (child "$1/member-$n" "$1") & done
(set -m; (child "$1/leader" "$1") &)
child "$1/first" "$1"
"""


def test_each_process_is_asked_once(shell: list[str], tmp_path: Path) -> None:
    """Members of a group, its leader, and one of another group."""
    mark, go = guest.new_mark(), tmp_path / "go"
    go.touch()
    names = {"first", "leader", *(f"member-{n}" for n in range(1, 9))}
    family = subprocess.Popen(
        ["bash", "-c", FAMILY, "family", str(tmp_path)],
        env=guest.marked_env(os.environ, mark),
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    ending = None
    try:
        deadline = time.monotonic() + 60
        while {path.name for path in tmp_path.iterdir()} != {*names, "go"}:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        ending = subprocess.Popen([*shell, *guest.kill_argv(mark, 60)[1:]])
        while any(not (tmp_path / name).read_text() for name in names):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        go.unlink()
        assert ending.wait(60) == 0
        family.wait(60)
        asked = {name: (tmp_path / name).read_text() for name in names}
        assert asked == dict.fromkeys(asked, "asked\n")
    finally:
        go.unlink(missing_ok=True)
        for process in filter(None, (family, ending)):
            process.kill()
            process.wait()


@pytest.mark.parametrize("name", ["plain", "with space", "$(touch x)", "-n", "ünï\n"])
def test_reading_says_what_stands_there(shell: list[str], tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(bytes(range(256)) * 10)
    assert run(shell, guest.read_argv(str(path))).stdout == path.read_bytes()
    assert run(shell, guest.read_argv(str(path), 300)).stdout == path.read_bytes()[:300]
    assert run(shell, guest.read_argv(str(path), 0)).stdout == b""
    missing = run(shell, guest.read_argv(f"{path}-not"))
    assert isinstance(guest.read_failed(missing.returncode, "p"), SandboxFileNotFoundError)
    directory = run(shell, guest.read_argv(str(tmp_path)))
    assert isinstance(guest.read_failed(directory.returncode, "p"), SandboxIsADirectoryError)
    os.mkfifo(f"{path}-fifo")
    fifo = guest.read_failed(run(shell, guest.read_argv(f"{path}-fifo")).returncode, "p")
    assert type(fifo) is SandboxError
    assert "no regular file" in str(fifo)


SOURCE = """\
# /// script
# requires-python = "{python}"
# dependencies = [{dependencies}]
# ///
import sys
print("ran", *sys.argv[1:])
"""


@pytest.fixture
async def box():
    runtime = SubprocessRuntime(SubprocessConfig(), name="guest")
    await runtime.start()
    yield runtime
    await runtime.stop_confirmed()


async def test_a_program_runs_by_the_python_that_has_what_it_needs(box: SubprocessRuntime) -> None:
    source = SOURCE.format(python=">=3.9", dependencies="")
    argv, again = await asyncio.gather(
        guest.prepare_script(box, "image", source), guest.prepare_script(box, "image", source)
    )
    assert argv == again
    result = await box.run([*argv, "a b", "$(x)"])
    assert (result.exit_code, result.stdout) == (0, "ran a b $(x)\n")


async def test_a_program_that_cannot_be_had_says_what_is_lacking(
    box: SubprocessRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An installer that always fails, ahead of every other: the image's own tools decide nothing.
    for name in ("uv", "curl", "wget", "python3", "python"):
        tool = tmp_path / name
        tool.write_text("#!/bin/sh\necho no network here >&2\nexit 6\n")
        tool.chmod(0o755)
    source = SOURCE.format(python=">=3.9", dependencies='"no-such-distribution>=1"')
    run_in_box = box.run

    async def run(argv, env=None, **options):
        path = f"{tmp_path}:/usr/bin:/bin"
        return await run_in_box(argv, {**(env or {}), "PATH": path, "HOME": str(tmp_path)}, **options)

    monkeypatch.setattr(box, "run", run)
    with pytest.raises(HarnessError, match=r"no-such-distribution>=1.*image bare.*no network here"):
        await guest.prepare_script(box, "bare", source)


@pytest.mark.parametrize(
    ("python", "dependencies", "lacking"),
    [
        (">=3.9", ("a>=1",), ()),
        (">=3.9", ("a>=3",), ("a>=3",)),
        (">=3.9", ("a[x]>=1", "b"), ("a[x]>=1", "b")),
        (">=3.9", ("b ; python_version < '3.5'",), ()),
        (">=3.14", ("a",), ("Python >=3.14", "a")),
    ],
)
def test_what_an_image_lacks(python: str, dependencies: tuple[str, ...], lacking: tuple[str, ...]) -> None:
    found = {"python": "/usr/bin/python3", "version": "3.11.2", "have": {"a": "2.0"}}
    assert guest._judge(found, Header(python, dependencies)).lacking == lacking
    assert guest._judge({}, Header("", ())).lacking == ("Python 3",)
