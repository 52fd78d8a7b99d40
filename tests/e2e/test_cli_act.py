"""Acting on a live run without a screen: selectors, repeats, proof, and reading it back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.command_line import ARGV, Home, alive, records, wait_for
from doubles.pty_driver import PtyProcess
from vf_core.events.command import Reply
from vf_core.events.state import RolloutView, RunState
from vf_tui import cli


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A user's home; whatever still runs at the end is stopped."""
    home = Home(tmp_path)
    yield home
    home.stop_all()


def detach(home: Home, *scripts: str, head: str = "") -> dict[str, Any]:
    """A detached run whose first rollouts are under way; its launch record."""
    done = home("run", home.config(scripts, head=head), "--detach", "--json")
    assert done.returncode == 0, done.stderr
    (launch,) = records(done.stdout)
    events = Path(launch["dir"]) / "events.jsonl"
    wait_for(lambda: "program.started" in events.read_text(), "a rollout under way")
    return launch


def ask(home: Home, *args: str) -> tuple[int, dict[str, Any]]:
    done = home(*args, "--json")
    return done.returncode, json.loads(done.stdout)


def test_a_run_is_listed_stopped_restarted_and_paused(home: Home) -> None:
    launch = detach(home, "sleep 600", "sleep 600", "sleep 600", head="max_concurrent = 2")
    run, short = launch["run"], launch["run"][:6]

    (listed,) = home.runs()
    assert (listed["run"], listed["status"], listed["live"]) == (run, "running", True)
    dry = home("stop", short, "status:active", "--dry-run")
    assert "stop: 2 rollouts: 0000-0, 0001-0" in dry.stdout
    assert "nothing was sent" in dry.stdout

    assert ask(home, "pause", short)[1]["changed"] == ["run"]
    code, again = ask(home, "pause", short)
    assert (code, again["ok"], again["changed"]) == (0, True, [])
    assert "changed: no (already paused)" in home("pause", short).stdout

    code, stopped = ask(home, "stop", short, "0000-*", "--confirm")
    assert (code, stopped["targets"], stopped["changed"]) == (0, ["0000-0"], ["0000-0"])
    code, again = ask(home, "stop", short, "0000-0", "--confirm")
    assert (code, again["ok"], again["changed"]) == (0, True, [])
    shown = json.loads(home("show", short, "--json").stdout)
    first = shown["rollouts"][0]
    assert (first["status"], first["sandbox"]["state"]) == ("stopped", "gone")
    assert first["sandbox"]["proof"]

    assert ask(home, "unpause", short)[1]["changed"] == ["run"]
    code, restarted = ask(home, "restart", short, "task:script 0")
    assert (code, restarted["changed"]) == (0, ["0000-0"])
    assert home("stop", short, "status:error").stdout == "changed: no (no rollout is meant now)\n"

    code, ended = ask(home, "stop", short, "all", "--confirm")
    assert (code, len(ended["targets"]), ended["ok"]) == (0, 3, True)
    assert ended["message"] == "each sandbox is proven gone"
    wait_for(lambda: not alive(launch["pid"]), "the engine's end")
    code, over = ask(home, "stop", short, "all")
    assert (code, over["changed"], over["message"]) == (0, [], "it is over")
    assert home("restart", short, "all").returncode == 2

    journal = records(home("events", short, "--json").stdout)
    assert journal[0]["type"] == "run.started"
    assert "run.finished" in [event["type"] for event in journal]
    told = home("events", short, "--follow").stdout
    for words in ("paused: nothing new is launched", "stop 0000-0 asked by", "stopped: 3 stopped of 3"):
        assert words in told


@pytest.mark.parametrize(
    ("selector", "told"),
    [
        ("0009-0", "no rollout is meant by '0009-0' (did you mean 0000-0?)"),
        ("task:scrip", "did you mean task:script 0?"),
        ("status:eror", "did you mean status:error?"),
        ("", "no rollout is meant by ''"),
    ],
)
def test_a_selector_that_means_nothing_is_refused(selector: str, told: str) -> None:
    from vf_tui.commands.select import select

    state = RunState(rollouts={"0000-0": RolloutView("0000-0", name="script 0")})
    with pytest.raises(Exception, match="no rollout is meant") as info:
        select(state, [selector])
    assert told in str(info.value.format_message())  # type: ignore[attr-defined]


def test_selectors_mean_ids_patterns_statuses_and_tasks() -> None:
    from vf_tui.commands.select import select

    views = [
        RolloutView("0000-0", name="a[1]", task=0),
        RolloutView("0000-1", name="a[1]", task=0, sample=1, status="error"),
        RolloutView("0001-0", name="b", task=1, status="error"),
    ]
    state = RunState(rollouts={view.id: view for view in views})
    everything = [view.id for view in views]
    assert select(state, ["all"]) == everything
    assert select(state, ["0001-0", "0000-0"]) == ["0000-0", "0001-0"]
    assert select(state, ["0.1"]) == ["0000-1"], "as panes name it"
    assert select(state, ["0000-*"]) == ["0000-0", "0000-1"]
    assert select(state, ["status:error"]) == ["0000-1", "0001-0"]
    assert select(state, ["task:a[1]"]) == ["0000-0", "0000-1"]
    assert select(state, ["task:1"]) == ["0001-0"]
    assert select(state, ["status:stopped"]) == []


def test_what_cannot_be_proven_gone_is_exit_code_4(
    home: Home, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from vf_core.events.state import SandboxView
    from vf_core.runtimes.lifecycle import State
    from vf_tui.commands import act

    state = RunState(
        rollouts={"0000-0": RolloutView("0000-0")},
        sandboxes={"box": SandboxView("box", "0000-0", 1, "subprocess", State.SURVIVED)},
        unconfirmed={"box"},
    )

    class Stubborn:
        async def connect(self) -> RunState:
            return state

        async def batches(self):  # type: ignore[no-untyped-def]
            return
            yield

        async def command(self, *_: object, **__: object) -> Reply:
            return Reply(False, "0000-0: box is SURVIVED")

        async def close(self) -> None:
            pass

    class Run:
        id, live, liveness = "9a1d", True, "live"

    monkeypatch.setattr(act, "the_run", lambda text: Run)
    monkeypatch.setattr(act, "link_to", lambda *_, **__: Stubborn())
    monkeypatch.setattr(act, "load_state", lambda run: state)
    code = cli.run(["stop", "9a1d", "0000-0", "--confirm", "--json"])
    out, err = capfd.readouterr()
    assert (code, json.loads(out)["ok"]) == (4, False)
    assert "box is SURVIVED" in err
    assert cli.run(["stop", "9a1d", "0000-0"]) == 1


def test_n11_watching_without_a_screen_and_leaving_changes_nothing(home: Home) -> None:
    launch = detach(home, "sleep 600")
    argv = [*ARGV, "attach", launch["run"][:6]]
    with PtyProcess(argv, env={**home.env, "TERM": "dumb"}, cwd=home.work) as term:
        term.wait_for("0 of 1 done")
        assert "TERM is dumb" in term.text
        term.send("\x03")
        assert term.wait_exit() == 130
        assert b"\x1b" not in bytes(term.raw)
    assert alive(launch["pid"])
    follower = home.start("events", launch["run"], "--follow", "--json")
    home("stop", launch["run"], "all")
    assert follower.wait(60) == 0
    assert records(home.out())[-1]["type"] == "run.finished"
    assert home("attach", launch["run"]).stdout.splitlines()[-1] == "sandboxes: 0 unconfirmed"


def test_a_run_of_the_demo_with_nothing_to_configure(home: Home) -> None:
    for name in ("aiohttp", "pydantic", "vf_core"):  # what lies about is taken for no module of ours
        (home.work / f"{name}.py").write_text("raise SystemExit(1)\n")
    done = home("demo", "-n", "1", "--env.taskset.pace", "0.2", "--json")
    launch, rollout, last = records(done.stdout)
    assert done.returncode == 0, done.stderr
    assert (launch["taskset"], launch["model"]) == ("demo", "scripted-demo")
    assert (rollout["status"], rollout["exit_meaning"], last["reward"]) == ("completed", "exit 0", 1.0)
    assert rollout["tool_calls"] > 0
    assert last["tokens"]["completion"] > 0
    wait_for(lambda: not demo_models(launch["dir"]), "the scripted model's end")


def demo_models(directory: str) -> list[str]:
    """The processes that serve the demo of a run directory."""
    commands = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(file.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return [command for command in commands if "demo_model" in command and directory in command]
