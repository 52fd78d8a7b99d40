"""`vf-tui run` without a screen: exit codes, clean JSON, nothing lost (D05, C04, C07, S01, T01, T02, T10, X04)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.command_line import ARGV, Home, alive, records, wait_for

CANARY = "zq-canary-8f3a1c"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A user's home; whatever still runs at the end is stopped."""
    home = Home(tmp_path)
    yield home
    home.stop_all()


def test_d05_all_well_is_0_and_json_is_clean(home: Home) -> None:
    file = home.config(["touch solved", "exit 4"])
    done = home("run", "@", file, "--json")
    launch, *rollouts, last = records(done.stdout)
    assert done.returncode == 0
    assert launch["type"] == "launch"
    assert Path(launch["dir"]).is_dir()
    assert sorted((r["id"], r["status"], r["reward"], r["sandbox"]["state"]) for r in rollouts) == [
        ("0000-0", "completed", 1.0, "gone"),
        ("0001-0", "declined", 0.0, "gone"),
    ]
    assert (last["type"], last["status"], last["exit_code"]) == ("done", "completed", 0)
    assert (last["run"], last["unconfirmed"], last["reward"]) == (launch["run"], [], 0.5)
    assert not alive(launch["pid"])


def test_d05_errors_are_3_unless_allowed(home: Home) -> None:
    file = home.config(["exit 3", "touch solved"])
    done = home("run", file, "--headless")
    assert done.returncode == 3
    assert "1 completed, 1 error of 2" in done.stdout
    assert "HarnessError" in done.stdout
    assert "sandboxes: 0 unconfirmed" in done.stdout
    assert "reward: 1.000 (1 scored)" in done.stdout
    assert home("run", file, "--headless", "--max-errors", "1").returncode == 0


def test_plain_lines_tell_start_end_exit_and_teardown(home: Home) -> None:
    done = home("run", home.config(["touch solved", "exit 4"]))
    lines = done.stdout.splitlines()
    assert "no screen (standard input is not a terminal): plain lines" in done.stderr
    for words in (
        "0000-0 script 0: started",
        "0000-0 script 0: completed · reward 1 · exit 0",
        "0000-0 script 0: sandbox GONE (",
        "0001-0 script 1: declined (4) · reward 0",
    ):
        assert [line for line in lines if words in line], words


def test_d05_a_refused_config_is_2_and_nothing_is_left(home: Home) -> None:
    file = home.config(["true"], head="nmu_tasks = 1")
    done = home("run", file, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{file}: nmu_tasks: unknown key (did you mean num_tasks?)" in done.stderr
    assert not (home.work / "outputs").exists()


def test_a_config_that_only_the_engine_can_refuse_is_2_and_nothing_is_left(home: Home) -> None:
    done = home("run", home.config([]), "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no tasks" in done.stderr
    assert [path for path in (home.work / "outputs").rglob("*") if path.is_file()] == []


def test_d05_an_unreachable_provider_is_5(home: Home) -> None:
    call = (
        "import json, os, urllib.request as web\n"
        "headers = dict(authorization='Bearer ' + os.environ['SECRET'])\n"
        "body = json.dumps(dict(model='m', messages=[dict(role='user', content='x')])).encode()\n"
        "web.urlopen(web.Request(os.environ['URL'] + '/chat/completions', body, headers))\n"
    )
    file = home.config([f'python3 -c "{call}"'])
    done = home("run", file, "--json")
    last = records(done.stdout)[-1]
    assert (done.returncode, last["exit_code"]) == (5, 5), done.stdout


def test_dry_run_prints_what_can_be_run_and_starts_nothing(home: Home) -> None:
    file = home.config(["touch solved"])
    done = home("run", file, "--dry-run", "-r", "2", "--sampling.temperature", "0")
    assert (done.returncode, done.stderr) == (0, "")
    resolved = tomllib.loads(done.stdout)
    assert (resolved["num_rollouts"], resolved["sampling"]) == (2, {"temperature": 0.0})
    assert not (home.work / "outputs").exists()
    again = home.work / "again.toml"
    again.write_text(done.stdout, encoding="utf-8")
    assert home("run", again, "--dry-run").stdout == done.stdout
    as_json = home("run", file, "--dry-run", "--json")
    assert records(as_json.stdout)[0]["config"]["env"]["taskset"]["id"] == "vf_test_tasks"


@pytest.mark.parametrize("directory", ["work", "two words", "deep/er"])
def test_c07_the_same_from_every_directory_and_whatever_the_locale(home: Home, directory: str) -> None:
    file = home.config(["true"], head='output_dir = "gärten"')
    cwd = home.path / directory
    cwd.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*ARGV, "run", os.path.relpath(file, cwd), "--dry-run", "--json"],
        cwd=cwd,
        env={**home.env, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["config"]["output_dir"] == str(home.work / "gärten")


def test_c04_a_dry_run_in_the_c_locale_prints_utf8(home: Home) -> None:
    file = home.config(["true"], head='output_dir = "gärten"')
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = home("run", file, "--dry-run", **plain)
    assert tomllib.loads(done.stdout)["output_dir"] == str(home.work / "gärten")
    ended = home("run", file, "--headless", **plain)
    assert ended.returncode == 0
    assert ended.stdout.isascii()


def test_the_same_engine_in_this_process(home: Home) -> None:
    done = home("run", home.config(["touch solved"]), "--embedded", "--json")
    launch, *_, last = records(done.stdout)
    assert (done.returncode, launch["mode"], last["reward"]) == (0, "embedded", 1.0)


NOISE = """
import os, subprocess, sys, warnings
from vf_test_tasks import ScriptTaskset
__all__ = ["Noisy"]
def noise(when):
    print("noise out", when)
    print("noise err", when, file=sys.stderr)
    os.write(1, b"noise fd 1 %s\\n" % when.encode())
    os.write(2, b"noise fd 2 %s\\n" % when.encode())
    subprocess.run(["sh", "-c", f"echo noise child {when}; echo noise child {when} >&2"])
    warnings.warn(f"noise warning {when}")
noise("imported")
class Noisy(ScriptTaskset):
    def load(self):
        noise("loaded")
        return super().load()
"""


@pytest.mark.parametrize("where", [(), ("--embedded",)], ids=["process", "embedded"])
def test_what_plugins_print_never_reaches_our_streams(home: Home, where: tuple[str, ...]) -> None:
    """U10, also where the engine is in the process that prints the records."""
    (home.work / "noisy_tasks.py").write_text(NOISE)
    home.env["PYTHONPATH"] += f":{home.work}"
    file = home.config(["touch solved"])
    file.write_text(file.read_text().replace("vf_test_tasks", "noisy-tasks"))
    done = home("run", file, "--json", *where)
    assert done.returncode == 0
    launch, *_, last = records(done.stdout)
    assert last["reward"] == 1.0
    assert "noise" not in done.stdout + done.stderr
    log = (home.path / "state/vf-tui/logs/vf-tui.log").read_text()
    engine = (Path(launch["dir"]) / "logs/engine.log").read_text() if not where else log
    for what in ("out", "err", "fd 1", "fd 2", "child", "warning"):
        assert f"noise {what} imported" in log
        assert f"noise {what} loaded" in engine


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_t01_interrupts_are_visible_and_cut_nothing_short(home: Home, first: signal.Signals) -> None:
    script = "trap 'sleep 0.3; echo trapped' TERM; echo started; sleep 600 & wait"
    process = home.start(
        "run", home.config([script, script, script], head="max_concurrent = 2"), "--headless"
    )
    wait_for(lambda: home.out().count(": started") == 2, "two rollouts")
    process.send_signal(first)
    wait_for(lambda: "cleaning up" in home.err(), "the notice")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 130
    assert f"{first.name}: stopping the run and cleaning up" in home.err()
    assert "nothing is cut short" in home.err()
    assert "3 stopped of 3" in home.out()
    assert "sandboxes: 0 unconfirmed" in home.out()
    assert "Traceback" not in home.err()
    (run,) = home.runs()
    assert (run["status"], run["live"]) == ("stopped", False)


def test_t02_signals_to_everybody_at_once(home: Home) -> None:
    process = home.start("run", home.config(["sleep 600"]), "--json")
    launch = json.loads(wait_for(lambda: home.out().splitlines(), "the launch record")[0])
    events = Path(launch["dir"]) / "events.jsonl"
    wait_for(lambda: "program.started" in events.read_text(), "the rollout")
    for _ in range(2):
        for pid in (launch["pid"], process.pid):
            os.kill(pid, signal.SIGTERM)
    assert process.wait(60) == 130
    assert records(home.out())[-1]["status"] == "stopped"
    assert "Traceback" not in home.err()


def test_t10_the_run_outlives_whoever_started_it(home: Home) -> None:
    process = home.start("run", home.config(["sleep 600"]), "--headless")
    wait_for(lambda: ": started" in home.out(), "the rollout")
    process.kill()
    process.wait()
    (run,) = home.runs()
    assert run["live"]
    assert home("stop", run["run"], "all", "--confirm").returncode == 0
    wait_for(lambda: not alive(run["pid"]), "the engine's end")
    assert home.runs()[0]["status"] == "stopped"


def children(pid: int) -> list[str]:
    """The process ids of what `pid` has started, whichever of its threads did."""
    return [pid for file in Path(f"/proc/{pid}/task").glob("*/children") for pid in file.read_text().split()]


def test_a_signal_ends_a_run_that_is_still_being_started(home: Home) -> None:
    process = home.start("run", home.config(["true"]), "--env.taskset.hook", "load hangs", "--headless")
    wait_for(lambda: children(process.pid), "the engine's process")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert "stopping" in home.err()
    assert home.runs() == []


def test_a_killed_engine_is_told_and_nothing_is_lost(home: Home) -> None:
    process = home.start("run", home.config(["touch solved", "sleep 600"]), "--json")
    wait_for(lambda: '"type": "rollout"' in home.out(), "the first result")
    launch = records(home.out())[0]
    events = Path(launch["dir"]) / "events.jsonl"
    wait_for(lambda: events.read_text().count("program.started") == 2, "the second rollout")
    os.kill(launch["pid"], signal.SIGKILL)
    assert process.wait(60) == 1
    assert "the engine is lost" in home.err()
    last = records(home.out())[-1]
    assert (last["type"], last["exit_code"], last["counts"]["completed"]) == ("done", 1, 1)
    assert len(last["unconfirmed"]) == 1
    (run,) = home.runs()
    assert run["status"] == "died"
    shown = home("show", launch["run"])
    assert "its engine died" in shown.stdout
    assert "1 unconfirmed" in shown.stdout
    assert json.loads(home("show", launch["run"], "--json").stdout)["unconfirmed"] == last["unconfirmed"]
    stop = home("stop", launch["run"], "all")
    assert stop.returncode == 4
    # Without a screen it is shown and left: no more lines will come.
    watched = home("attach", launch["run"])
    assert (watched.returncode, "takes it up): its files are shown" in watched.stderr) == (0, True)
    assert "1 unconfirmed" in watched.stdout


def test_x04_two_runs_at_once_have_directories_of_their_own(home: Home) -> None:
    file = home.config(["touch solved"])
    both = [
        subprocess.Popen(
            [*ARGV, "run", file, "--json"], cwd=home.work, env=home.env, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, encoding="utf-8",
        )
        for _ in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=60)[0] for process in both]
    dirs = {records(out)[0]["dir"] for out in outputs}
    assert len(dirs) == 2
    for directory in dirs:
        assert len((Path(directory) / "traces.jsonl").read_text().splitlines()) == 1


def test_s01_what_is_saved_and_printed_holds_no_secret(home: Home) -> None:
    file = home.config(["touch solved"])
    text = file.read_text().replace("[client]\n", f'[client]\nheaders = {{ X-Team-ID = "{CANARY}" }}\n')
    file.write_text(text + f'env = {{ ACME = "{CANARY}", DEBUG = "1" }}\n')
    home.env["OPENAI_API_KEY"] = CANARY
    done = home("run", file, "--json")
    assert done.returncode == 0
    dry = home("run", file, "--dry-run")
    told = done.stdout + done.stderr + dry.stdout
    assert CANARY not in told
    assert 'DEBUG = "1"' in dry.stdout
    holders = [
        path
        for path in (home.work / "outputs").rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes()
    ]
    assert holders == []
    state = [
        path
        for path in (home.path / "state").rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes()
    ]
    assert state == []
    saved = Path(records(done.stdout)[0]["dir"]) / "config.toml"
    again = home("run", saved, "--dry-run")
    assert again.returncode == 2
    assert "VF_TUI_SECRET_HEADERS_X_TEAM_ID, which is not set" in again.stderr


def test_hostile_text_is_printed_clean(home: Home) -> None:
    file = home.config(["exit 3"])
    source = (Path(home.env["PYTHONPATH"].split(":")[0]) / "vf_test_tasks.py").read_text()
    (home.work / "hostile_tasks.py").write_text(
        source.replace('f"script {i}"', r'"\x1b]0;pwned\x07\x1b[2J\rna\x9bme\u202e[/x]"')
    )
    home.env["PYTHONPATH"] += f":{home.work}"
    file.write_text(file.read_text().replace("vf_test_tasks", "hostile_tasks"))
    done = home("run", file, "--headless")
    assert done.returncode == 3
    assert "[/x]: error" in done.stdout
    run = home.runs()[0]["run"]
    for text in (done.stdout, done.stderr, home("show", run).stdout, home("events", run).stdout):
        assert not {c for c in text if c in "\x1b\x07\x9b\r\u202e"}
        assert "pwned" not in text
