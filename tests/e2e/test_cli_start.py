"""Commands before anything runs: help, imports, and how wrong input ends (issue: `--help` at once, lazy imports)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from vf_tui import cli

HEAVY = ("textual", "rich", "openai", "mcp", "httpx", "aiohttp")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own home, an empty working directory, and no terminal."""
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def run(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = cli.run(args)
    out, err = capfd.readouterr()
    return code, out, err


def imported(*args: str) -> set[str]:
    """The modules that a command has imported at its end."""
    code = (
        "import sys, json\nfrom vf_tui.cli import run\ncode = run(json.loads(sys.argv[1]))\n"
        "sys.stderr.write(json.dumps([code, sorted(sys.modules)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(args)],
        capture_output=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    exit_code, modules = json.loads(done.stderr)
    assert exit_code == 0
    return set(modules)


def test_help_imports_nothing_but_click() -> None:
    modules = imported("--help")
    assert not [name for name in (*HEAVY, "pydantic", "asyncio", "vf_tui.commands") if name in modules]


@pytest.mark.parametrize("args", [("ls",), ("ls", "--json"), ("keys",), ("config",)])
def test_commands_that_draw_nothing_import_nothing_heavy(args: tuple[str, ...]) -> None:
    modules = imported(*args)
    assert not [name for name in HEAVY if name in modules]


def test_help_lists_every_command_with_its_own_line(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "--help")
    assert (code, err) == (0, "")
    context = click.Context(cli.cli)
    for name, (_, line) in cli.COMMANDS.items():
        assert f"  {name} " in out
        command = cli.cli.get_command(context, name)
        assert command is not None
        assert command.name == name
        help = " ".join((command.help or "").split())
        assert help.startswith(line.rstrip(".")), name
        assert "--help" in command.get_help(context)


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    from vf_core import __version__

    assert run(capfd, "--version") == (0, f"vf-tui {__version__}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_generated(shell: str) -> None:
    env = {**os.environ, "_VF_TUI_COMPLETE": f"{shell}_source"}
    done = subprocess.run(
        [sys.executable, "-c", "from vf_tui.cli import main; main()"],
        env=env,
        capture_output=True,
        check=False,
    )
    assert b"_VF_TUI_COMPLETE" in done.stdout
    assert b"Traceback" not in done.stderr


WRONG = [
    (["lss"], "did you mean ls?"),
    (["--frob"], "No such option"),
    (["--slow", "ls"], "--slow goes behind the command: vf-tui ls --slow"),
    (["run"], "a config file is missing"),
    (["run", "@"], "a config file is missing after @"),
    (["run", "nope.toml"], "nope.toml: no such file"),
    (["run", "@", "nope.toml"], "nope.toml: no such file"),
    (["run", "a.toml", "b.toml"], "one config file, not 2: a.toml, b.toml"),
    (["run", "a.toml", "--detach", "--headless"], "exclude each other"),
    (["run", "--detach", "--embedded", "a.toml"], "exclude each other"),
    (["run", "--model", "x"], "env.taskset.id: is required"),
    (["run", "--taskset.id", "demo", "--model"], "--model: needs a value"),
    (["run", "--taskset.id", "jsonl", "--env.taskset.path", "x", "--modle", "x"], "did you mean model?"),
    (["demo", "-n", "0"], "0 is not in the range"),
    (["demo", "x.toml"], "`vf-tui run x.toml` does"),
    (["attach"], "no run is live"),
    (["attach", "9a1d"], "there is no run '9a1d'"),
    (["open"], "Missing argument 'DIR|RUN'"),
    (["open", "nowhere"], "there is no run 'nowhere'"),
    (["show", "9a1d"], "there is no run '9a1d'"),
    (["events", "9a1d"], "there is no run '9a1d'"),
    (["stop", "9a1d"], "say which rollouts"),
    (["stop", "9a1d", "all"], "there is no run '9a1d'"),
    (["restart", "9a1d"], "say which rollouts"),
    (["restart", "9a1d", "all", "--frob"], "No such option"),
    (["pause"], "Missing argument 'RUN'"),
    (["ls", "--jsn"], "No such option"),
]


@pytest.mark.parametrize(("args", "told"), WRONG)
def test_d05_wrong_input_is_one_line_and_exit_code_2(
    args: list[str], told: str, capfd: pytest.CaptureFixture[str], home: Path
) -> None:
    code, out, err = run(capfd, *args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert told in err
    assert "Traceback" not in err
    assert list((home / "work").iterdir()) == []


def test_a_broken_settings_file_is_told(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (home / "config/vf-tui").mkdir(parents=True)
    (home / "config/vf-tui/config.toml").write_text("them = 'x'\n")
    code, _, err = run(capfd, "config")
    assert code == 2
    assert "config.toml: them: unknown key (did you mean theme?)" in err


def test_an_unexpected_failure_is_one_line_and_in_the_log(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vf_tui.commands import facts

    def fail(*_: object, **__: object) -> int:
        raise RuntimeError("\x1b[2Jboom\nsecond line")

    monkeypatch.setattr(facts, "print_runs", fail)
    code, out, err = run(capfd, "ls")
    log = home / "state/vf-tui/logs/vf-tui.log"
    assert (code, out) == (1, "")
    assert "internal error: RuntimeError: boom" in err
    assert "\x1b" not in err
    assert str(log) in err
    assert "Traceback" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, click.Abort])
def test_an_interrupt_is_no_failure(
    error: type[BaseException], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vf_tui.commands import facts

    def interrupt(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr(facts, "print_runs", interrupt)
    assert run(capfd, "ls")[0] == 130


def test_nothing_yet_says_what_to_do(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "ls")[:2] == (0, "no runs yet; `vf-tui demo` makes one\n")
    assert run(capfd, "ls", "--json")[:2] == (0, "[]\n")


def test_n11_without_a_terminal_home_is_the_list_of_runs(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd)
    assert (code, out) == (0, "no runs yet; `vf-tui demo` makes one\n")
    assert "no screen (standard" in err


def test_how_the_app_is_set_up(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    own = home / "config/vf-tui"
    (own / "themes").mkdir(parents=True)
    (own / "config.toml").write_text('theme = "mine"\nbell = false\n')
    (own / "themes/mine.toml").write_text('[colours]\naccent = "#ff0000"\n')
    (own / "keys.toml").write_text('"rollout.stop" = "s"\n')
    _, out, _ = run(capfd, "config", "--json")
    settings = json.loads(out)["settings"]
    assert settings["bell"] == {"value": False, "source": str(own / "config.toml")}
    assert settings["mouse"]["source"] == "default"
    _, out, _ = run(capfd, "keys", "--json")
    stop = next(key for key in json.loads(out) if key["id"] == "rollout.stop")
    assert (stop["keys"], stop["remapped"]) == (["s"], True)
    _, out, _ = run(capfd, "themes", "--json")
    assert {
        "name": "mine",
        "dark": True,
        "current": True,
        "file": str(own / "themes/mine.toml"),
    } in json.loads(out)
    for command in ("config", "keys", "themes"):
        code, out, _ = run(capfd, command)
        assert code == 0
        assert len(out.splitlines()) > 4
