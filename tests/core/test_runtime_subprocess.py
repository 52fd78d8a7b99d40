"""What a local sandbox sees of the host, and what it leaves there."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from doubles.local_boxes import local_box, sh, until
from vf_core.errors import ConfigError, SandboxError, SandboxUnconfirmedError
from vf_core.runtimes import RUNTIMES, environment, make_runtime, records, runtime_config_class
from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.subprocess import SubprocessConfig, SubprocessRuntime

CANARY = "canary-5f1e"
SECRETS = {
    "OPENAI_API_KEY": CANARY,
    "my_apikey": CANARY,
    "HF_TOKEN": CANARY,
    "SLACK_TOKEN_FILE": f"/run/{CANARY}",
    "DB_PASSWORD": CANARY,
    "MYSQL_PWD": CANARY,
    "CLIENT_SECRET_ID": CANARY,
    "GOOGLE_APPLICATION_CREDENTIALS": f"/home/me/{CANARY}.json",
    "COOKIE": CANARY,
    "AUTHORIZATION": f"Bearer {CANARY}",
    "SESSION_ID": CANARY,
    "X-Team-ID": CANARY,
    "AWS_ACCESS_KEY_ID": CANARY,
    "STRIPE_KEY": CANARY,
    "SSH_AUTH_SOCK": f"/tmp/{CANARY}",
    "DATABASE_URL": f"postgres://user:{CANARY}@db.internal/x",
    "SENTRY_DSN": f"https://{CANARY}@sentry.example/1",
    "PIP_EXTRA_INDEX_URL": f"https://pypi.example/simple https://user:{CANARY}@packages.example/simple",
    "PLAIN_LOOKING": f"ghp_{CANARY.replace('-', '')}0123456789",
}
ORDINARY = {
    "LANG": "de_DE.UTF-8",
    "CARGO_HOME": "/home/me/.cargo",
    "GIT_REMOTE": "ssh://git@github.com/org/repo",
    "HTTP_PROXY": "http://proxy.internal:3128",
    "MONKEYS": "three",
    "TASK_COLOUR": "blue",
}


async def seen_inside(box: SubprocessRuntime, env: dict[str, str] | None = None) -> dict[str, str]:
    program = "import os,json; print(json.dumps(dict(os.environ)))"
    return json.loads((await box.run(["python3", "-c", program], env)).stdout)


# ---------------------------------------------------------------------- the environment


async def test_secrets_of_the_host_are_not_inherited(monkeypatch):
    """S01, S02: by name in any case, by value; the rest is."""
    for name, value in (SECRETS | ORDINARY).items():
        monkeypatch.setenv(name, value)
    box = local_box()
    await box.start()
    inside = await seen_inside(box, {"EXPLICIT_TOKEN": "given"})
    await box.stop_confirmed()
    assert [name for name, value in inside.items() if CANARY.replace("-", "") in value.replace("-", "")] == []
    assert {name: inside.get(name) for name in ORDINARY} == ORDINARY
    assert inside["EXPLICIT_TOKEN"] == "given"


async def test_no_provider_of_the_host_is_found(monkeypatch):
    """I05."""
    for name in (
        "OPENAI_BASE_URL",
        "OPENAI_API_BASE",
        "ANTHROPIC_BASE_URL",
        "OPENAI_ORG_ID",
        "SOME_BASE_URL",
    ):
        monkeypatch.setenv(name, "http://127.0.0.1:1/v1")
    box = local_box()
    await box.start()
    inside = await seen_inside(box)
    await box.stop_confirmed()
    assert [name for name in inside if "BASE" in name or name.startswith(("OPENAI", "ANTHROPIC"))] == []


async def test_this_programs_virtual_environment_stays_outside(monkeypatch):
    """R20."""
    assert sys.prefix != sys.base_prefix, "the tests run in a virtual environment"
    bin_dir = os.path.join(sys.prefix, "bin")
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("PATH", f"{bin_dir}:{os.environ['PATH']}:{bin_dir}/")
    box = local_box()
    await box.start()
    result = await box.run(
        [
            "python3",
            "-c",
            "import sys; print(sys.prefix)\ntry: import textual\nexcept ImportError: print('without')",
        ]
    )
    inside = await seen_inside(box)
    await box.stop_confirmed()
    prefix, without = result.stdout.split()
    assert os.path.realpath(prefix) != os.path.realpath(sys.prefix)
    assert without == "without"
    assert "VIRTUAL_ENV" not in inside
    assert bin_dir not in inside["PATH"]


async def test_anothers_virtual_environment_is_the_users_business(monkeypatch, tmp_path):
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    assert environment.host_environment()["VIRTUAL_ENV"] == str(tmp_path)


async def test_the_users_terminal_is_out_of_reach(monkeypatch):
    """R14: a commit without a message ends, a session of tmux is not found."""
    monkeypatch.setenv("TMUX", "/tmp/tmux-0/default,1,0")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("EDITOR", "vi")
    box = local_box()
    await box.start()
    inside = await seen_inside(box)
    git = "git init -q . && touch f && git add f && git -c user.name=a -c user.email=a@b commit"
    result = await asyncio.wait_for(box.run(sh(git), timeout=60), 70)
    await box.stop_confirmed()
    assert "TMUX" not in inside
    assert "EDITOR" not in inside
    assert inside["TERM"] == "dumb"
    assert not result.timed_out
    assert result.exit_code != 0


@pytest.fixture
def _open_input():
    """This process's standard input is one that says nothing and does not end, as a terminal's."""
    saved, (silent, end) = os.dup(0), os.pipe()
    os.dup2(silent, 0)
    yield
    os.dup2(saved, 0)
    for fd in (saved, silent, end):
        os.close(fd)


@pytest.mark.usefixtures("_open_input")
async def test_r14_who_reads_gets_an_end_at_once():
    box = local_box()
    await box.start()
    for read in (box.run, partial(box.run_program, on_output=lambda *_: None)):
        result = await read(sh("read line; echo $?; readlink /proc/self/fd/0"), timeout=10)
        assert (result.timed_out, result.stdout) == (False, "1\n/dev/null\n")
    await box.run_background(sh("read line; echo $? > ended"))
    await until(lambda: Path(box.directory, "ended").exists())
    await box.stop_confirmed()


async def test_marks_of_sandbox_and_run_cannot_be_overridden():
    box = local_box()
    await box.start()
    inside = await seen_inside(box, {"VF_TUI_SANDBOX": "somebody-else/1", "VF_TUI_ENGINE": "x"})
    await box.stop_confirmed()
    assert inside["VF_TUI_SANDBOX"].startswith(f"{box.sandbox_id}/")
    assert inside["VF_TUI_RUN"] == "test"
    assert inside["VF_TUI_ENGINE"].startswith(f"{os.getpid()}-")


async def test_an_engine_in_a_sandbox_keeps_that_sandboxes_mark(monkeypatch):
    monkeypatch.setenv("VF_TUI_SANDBOX", "outer-1/4")
    box = local_box()
    await box.start()
    inside = await seen_inside(box)
    await box.stop_confirmed()
    outer, own = inside["VF_TUI_SANDBOX"].split(":")
    assert outer == "outer-1/4"
    assert own.startswith(box.sandbox_id)


def test_marks_are_read_exactly():
    block = b"A=1\0VF_TUI_SANDBOX_OLD=x/1\0X=VF_TUI_SANDBOX=y/1\0VF_TUI_SANDBOX=a/1:b/2\0Z="
    assert environment.marks_in(block, "VF_TUI_SANDBOX") == ("a/1", "b/2")
    assert environment.marks_in(b"VF_TUI_SANDBOX=a/1", "VF_TUI_SANDBOX") == ("a/1",)
    assert environment.marks_in(b"B=VF_TUI_SANDBOX=a/1\0", "VF_TUI_SANDBOX") == ()
    assert environment.marks_in(b"", "VF_TUI_SANDBOX") == ()


async def test_the_parents_environment_holds_no_secret():
    """S01: a program may read the environment block of the engine, its parent."""
    program = (
        "import asyncio, os, sys\n"
        "from vf_core.runtimes import make_runtime, runtime_config_class\n"
        "async def main():\n"
        "    box = make_runtime(runtime_config_class('subprocess')(type='subprocess'), name='b')\n"
        "    await box.start()\n"
        "    read = 'import os; print(open(f\"/proc/{os.getppid()}/environ\").read())'\n"
        "    print((await box.run(['python3', '-c', read])).stdout)\n"
        "    await box.stop_confirmed()\n"
        "    print('kept', os.environ['OPENAI_API_KEY'][::-1])\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program),
        env={**os.environ, "OPENAI_API_KEY": CANARY, "WORD": "ordinary"},
        stdout=asyncio.subprocess.PIPE,
    )
    out = (await process.communicate())[0].decode()
    assert process.returncode == 0
    assert "WORD=ordinary" in out
    assert CANARY not in out
    assert f"kept {CANARY[::-1]}" in out


# ---------------------------------------------------------------------- on disk


async def test_directories_and_records_are_private(monkeypatch):
    """S08: whatever the umask."""
    old = os.umask(0)
    try:
        box = local_box()
        await box.start()
        directory = Path(box.directory)
        record = Path(f"{directory}.json")
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (directory.parent, directory, record)]
        await box.stop_confirmed()
    finally:
        os.umask(old)
    assert modes == [0o700, 0o700, 0o600]


async def test_written_down_before_it_exists_and_forgotten_after(monkeypatch):
    """T04."""
    at_mkdir: list[records.Record] = []
    mkdir = os.mkdir

    def watched(path, mode=0o777, **options):
        at_mkdir.extend(record for record in records.read_records() if record.directory == str(path))
        mkdir(path, mode, **options)

    monkeypatch.setattr(os, "mkdir", watched)
    box = local_box("written")
    await box.start()
    (record,) = at_mkdir
    assert (record.id, record.name, record.run, record.pid) == (
        box.sandbox_id,
        "written",
        "test",
        os.getpid(),
    )
    assert record.start > 0
    assert record.boot
    assert record.token in (await seen_inside(box))["VF_TUI_ENGINE"]
    await box.stop_confirmed()
    assert not os.path.exists(record.directory)
    assert record.id not in [other.id for other in records.read_records()]


async def test_names_in_a_shared_place_cannot_be_taken_first(monkeypatch, tmp_path):
    """R26: a link, a file, and a directory open to others stand where ours might."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(records, "_root", None)
    prefix = records._prefix()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / f"{prefix}1").symlink_to(elsewhere)
    (tmp_path / f"{prefix}2").write_text("")
    (tmp_path / f"{prefix}3").mkdir()
    (tmp_path / f"{prefix}3").chmod(0o777)
    box = local_box()
    await box.start()
    root = Path(box.directory).parent
    assert root.parent == tmp_path.resolve()
    assert root.name not in {f"{prefix}{number}" for number in (1, 2, 3)}
    await box.stop_confirmed()
    assert list(root.iterdir()) == []
    assert list(elsewhere.iterdir()) == []


async def test_a_root_that_goes_away_is_made_again(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(records, "_root", None)
    for _ in range(2):
        box = local_box()
        await box.start()
        await box.stop_confirmed()
        records._leave_root()
        assert list(tmp_path.iterdir()) == []


async def test_no_room_is_a_sandbox_error(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    monkeypatch.setattr(records, "_root", None)
    box = local_box()
    with pytest.raises(SandboxError, match="TMPDIR"):
        await box.start()
    assert box.state is State.FAILED
    await box.stop_confirmed()
    assert "nothing was made" in box.proof


async def test_whatever_the_agent_left_is_removed_and_no_more(tmp_path):
    """T19."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o711)
    (outside / "kept").write_text("x")
    box = local_box()
    await box.start()
    directory = box.directory
    script = f"mkdir -p a/b/c && touch a/b/c/f && ln -s {outside} a/l && chmod 0 a/b/c && chmod 500 a/b && chmod 0 a"
    assert (await box.run(sh(script))).exit_code == 0
    await box.stop_confirmed()
    assert not os.path.lexists(directory)
    assert stat.S_IMODE(outside.stat().st_mode) == 0o711
    assert (outside / "kept").read_text() == "x"


async def test_a_directory_that_stays_is_no_proof(monkeypatch):
    box = local_box()
    await box.start()
    await box.write("f", b"")
    with monkeypatch.context() as patched:
        patched.setattr(records, "remove_tree", lambda path: f"{path}/f: Device or resource busy")
        with pytest.raises(SandboxUnconfirmedError, match=r"SURVIVED.*busy"):
            await box.stop_confirmed(timeout=0.5)
    assert os.path.exists(f"{records.private_root()}/{box.sandbox_id}.json")
    await box.stop_confirmed()
    assert box.state is State.GONE


def test_a_torn_record_is_passed_over(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(records, "_root", None)
    kept = records.create("kept-1", "kept", {"run": "r", "rollout": "t1"})
    Path(records.private_root(), "torn-2.json").write_text('{"id": "torn-2", "na')
    newer = json.loads(Path(f"{kept.directory}.json").read_text()) | {"id": "newer-3", "something": "more"}
    Path(records.private_root(), "newer-3.json").write_text(json.dumps(newer))
    assert [record.id for record in records.read_records()] == ["kept-1", "newer-3"]
    assert kept.labels == {"run": "r", "rollout": "t1"}


# ---------------------------------------------------------------------- the registry


def test_kinds_are_found_by_name():
    for kind in RUNTIMES:
        config = runtime_config_class(kind)(type=kind)
        assert make_runtime(config, name="x").kind == kind
    with pytest.raises(ConfigError, match="subprocess"):
        runtime_config_class("subproces")


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a b", "ü", "x" * 300, "new\nline", ".."])
async def test_any_name_is_a_directory_of_its_own(name):
    """S04."""
    box = local_box(name)
    await box.start()
    assert Path(box.directory).parent == records.private_root()
    assert box.name == name
    await box.stop_confirmed()


def test_the_grace_period_is_configured():
    assert SubprocessConfig().grace == 2.0
    with pytest.raises(ValueError, match="grace"):
        SubprocessConfig(grace=-1)
