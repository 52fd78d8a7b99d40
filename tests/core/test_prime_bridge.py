"""The Prime CLI bridge: what becomes of the argument lists that the CLI's own code builds (contracts 6)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from doubles.command_line import Home
from vf_core.errors import ConfigError
from vf_core.eval_v1_prime import EVALUATOR, command_for, main, translate

RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "doubles" / "prime_cli_args.jsonl").read_text().splitlines()
]
BUILT = [record for record in RECORDED if record["built"]]
V1 = 'model = "m"\n[env.taskset]\nid = "demo"\n'

WANTED = {
    "eval.toml": [],
    "eval.toml --skip-upload": [],
    "eval.toml -m openai/gpt-5-mini -o elsewhere": ["-m", "openai/gpt-5-mini", "-o", "elsewhere"],
    "eval.toml --model=openai/gpt-5-mini --output-dir=elsewhere --dry-run --verbose": [
        "--model=openai/gpt-5-mini",
        "--output-dir=elsewhere",
        "--dry-run",
        "--verbose",
    ],
    "eval.toml -b http://127.0.0.1:9/v1 -k OPENAI_API_KEY --save-results": [],
    "eval.toml -p prime --disable-tui --no-push": ["--no-push"],
    "eval.toml --api-base-url=http://127.0.0.1:9/v1 --header=X-A: b --header-from-state X-B: c": [],
    "eval.toml -e endpoints.toml --env-dir-path environments": [],
    "eval.toml -n 3": None,
}
"""By what the user typed behind `prime eval run`: the options that a v1 run gets; None: refused."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a v1 config in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "eval.toml").write_text(V1, encoding="utf-8")
    return tmp_path


@pytest.fixture
def verifiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with verifiers' evaluator, which prints how it was called and exits with 7."""
    module = tmp_path / "site" / "verifiers" / "cli" / "commands" / "eval.py"
    module.parent.mkdir(parents=True)
    for package in (module.parent, module.parents[1], module.parents[2]):
        (package / "__init__.py").touch()
    module.write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\nsys.exit(7)\n")
    monkeypatch.syspath_prepend(module.parents[3])
    monkeypatch.setenv("PYTHONPATH", str(module.parents[3]), prepend=os.pathsep)
    return module


@pytest.mark.parametrize("record", BUILT, ids=[" ".join(record["typed"]) for record in BUILT])
def test_what_prime_builds_becomes_a_v1_run(record: dict[str, list[str]], place: Path) -> None:
    wanted = WANTED[" ".join(record["typed"])]
    if wanted is None:
        with pytest.raises(ConfigError, match="'-n'"):
            command_for(record["built"])
        return
    path = str(place / "eval.toml")
    assert command_for(record["built"]) == ["vf_tui.cli", "run", "@", path, "--headless", *wanted]


def test_the_recorded_lists_are_prime_s_own() -> None:
    """0.7.7 is the last that starts a local evaluator; 0.18 tells its user to run it without it."""
    by_version = {record["prime"] for record in RECORDED}
    assert by_version == {"0.7.7", "0.18.0"}
    for record in RECORDED:
        if record["prime"] == "0.18.0":
            assert record["built"] is None
            assert "no longer runs evaluations locally" in record["said"]
        else:
            assert record["built"][0] == record["typed"][0]


DROPPED_WITH_VALUE = [
    "--api-base-url",
    "-b",
    "--api-key-var",
    "-k",
    "--provider",
    "-p",
    "--endpoints-path",
    "-e",
]
DROPPED_WITH_VALUE += ["--header", "--header-from-state", "--env-dir-path"]


@pytest.mark.parametrize("flag", DROPPED_WITH_VALUE)
def test_an_injected_option_goes_with_its_value(flag: str) -> None:
    assert translate([flag, "--dry-run"[2:], "--dry-run", f"{flag}=--model", "-m", "x"]) == [
        "--dry-run",
        "-m",
        "x",
    ]


@pytest.mark.parametrize("flag", ["--model", "-m", "--output-dir", "-o"])
def test_an_option_with_a_value_is_kept_as_written(flag: str) -> None:
    assert translate([flag, "v", f"{flag}=w=x"]) == [flag, "v", f"{flag}=w=x"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["--save-results", "-s", "--disable-tui"], []),
        (["--skip-upload"], ["--no-push"]),
        (["--no-push", "--skip-upload", "--skip-upload"], ["--no-push"]),
        (["--skip-upload", "--dry-run", "--no-push"], ["--no-push", "--dry-run"]),
        (["--verbose", "--dry-run"], ["--verbose", "--dry-run"]),
    ],
)
def test_flags_that_stand_alone(given: list[str], wanted: list[str]) -> None:
    assert translate(given) == wanted


@pytest.mark.parametrize(
    "given",
    [
        ["-n", "3"],
        ["--num-examples=3"],
        ["-v"],
        ["stray"],
        ["--skip-upload=1"],
        ["-mfoo"],
        ["--max-turns", "3"],
        [""],
    ],
    ids=" ".join,
)
def test_anything_else_is_refused_by_name(given: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"^{given[0]!r} can't be given"):
        translate(["-m", "x", *given])


@pytest.mark.parametrize("given", [["-m"], ["--header"], ["-o", "--dry-run"]], ids=" ".join)
def test_a_value_that_is_missing_is_told(given: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"{given[0]} needs a value"):
        translate(given)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("primeintellect/gsm8k", None),
        ("missing.toml", None),
        ("v0.toml", '[[eval]]\nenv_id = "gsm8k"\n'),
        ("older.toml", '[taskset]\nid = "demo"\n'),
        ("no-table.toml", '[env]\ntaskset = "demo"\n'),
        ("several.toml", '[[env]]\n[env.taskset]\nid = "demo"\n'),
        ("broken.toml", "[env.taskset\n"),
        ("plain.txt", V1),
    ],
)
def test_every_other_target_goes_unchanged_to_verifiers(
    name: str, text: str | None, place: Path, verifiers: Path
) -> None:
    if text is not None:
        (place / name).write_text(text, encoding="utf-8")
    given = [name, "-n", "3", "--header", "X: y", "-s"]
    assert command_for(given) == [EVALUATOR, *given]
    (place / "d.toml").mkdir()
    assert command_for(["d.toml"]) == [EVALUATOR, "d.toml"]


def test_its_exit_code_is_ours(
    place: Path, verifiers: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "gsm8k", "-n", "3"])
    assert main() == 7
    assert json.loads(capfd.readouterr().out) == ["gsm8k", "-n", "3"]
    verifiers.write_text("import os\nos.kill(os.getpid(), 9)\n")
    assert main(["gsm8k"]) == 137


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_waited_for(place: Path, verifiers: Path, number: signal.Signals) -> None:
    """Also a ctrl+c that no terminal sent; and a second one ends nobody sooner."""
    verifiers.write_text(
        f"import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])\nprint('up', flush=True)\n"
        f"for n in 1, 2:\n    signal.sigwait([{int(number)}])\n    print(n, flush=True)\nraise SystemExit(9)\n"
    )
    argv = [sys.executable, "-m", "vf_core.eval_v1_prime", "gsm8k"]
    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, **quiet) as bridge:  # type: ignore[call-overload]
        try:
            for line in ("up\n", "1\n"):
                assert bridge.stdout.readline() == line
                bridge.send_signal(number)
            assert bridge.wait(60) == 9
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(bridge.pid, signal.SIGKILL)


@pytest.mark.parametrize("given", [[], ["gsm8k"], ["--help"], ["missing.toml"]], ids=" ".join)
def test_without_verifiers_it_is_told(
    given: list[str], place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    assert main(given) == 2
    err = capsys.readouterr().err
    assert "verifiers" in err
    assert "not installed" in err
    assert (given or ["no target"])[0] in err


def test_a_run_through_the_bridge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """From Prime's argument list to a finished run, whose exit code it gives; a refused list starts nothing."""
    home = Home(tmp_path / "home")
    config = home.config(["true", "exit 3"])
    for name, value in home.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home.work)
    injected = BUILT[0]["built"][1:]
    assert main([config.name, *injected, "--hosted"]) == 2
    assert "'--hosted'" in capfd.readouterr().err
    assert not list(home.work.rglob("traces.jsonl"))
    assert main([config.name, *injected, "-o", "elsewhere"]) == 3
    (traces,) = (home.work / "elsewhere").rglob("traces.jsonl")
    assert len(traces.read_text().splitlines()) == 2
