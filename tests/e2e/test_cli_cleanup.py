"""`vf-tui sandboxes` and `vf-tui cleanup` from the command line, on what killed engines really left."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from doubles.command_line import ARGV, Home, records
from doubles.inventories import alive, elsewhere, item
from doubles.left_over import apart, forget_about, kill, ledger_rows, listed, run_of
from doubles.pty_driver import PtyProcess
from vf_core.sandboxes.items import Inventory, Outcome, ProviderReport
from vf_core.sandboxes.ledger import Ledger
from vf_tui.commands import cleanup
from vf_tui.commands.boxes import item_lines
from vf_tui.commands.cleanup import Wanted, choose, claimed


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with apart(tmp_path) as home:
        yield home


# All other providers' SDKs are loaded for a question that goes to everybody: a second and a half.
LOCAL = ("--provider", "subprocess")


def boxes_of(home: Home, *runs: dict[str, Any], options: tuple[str, ...] = LOCAL) -> list[dict[str, Any]]:
    """The sandboxes of these runs, as `sandboxes --json` has them."""
    wanted = {run["run"] for run in runs}
    return [box for box in listed(home, *options)["sandboxes"] if box["run"] in wanted]


def test_what_a_killed_engine_left_is_told_listed_deleted_and_proven(home: Home) -> None:
    dead = run_of(home, 2)
    kill(dead)
    bystander = run_of(home, 1, "other.toml")

    told = home("ls")
    assert "2 sandboxes of dead runs are left (2 subprocess): `vf-tui cleanup`" in told.stderr
    assert "left" not in told.stdout
    next_step = f"`vf-tui cleanup {dead['run'][:8]}` ends what is there"
    assert next_step in home("show", dead["run"]).stderr
    refused = home("stop", dead["run"], "0000-0")
    assert refused.returncode == 4
    assert f"2 sandboxes are not proven gone: {next_step}" in refused.stderr

    boxes = boxes_of(home, dead, bystander, options=())
    left = [box for box in boxes if box["leftover"]]
    assert {box["run"] for box in left} == {dead["run"]}
    assert [box["seen"] for box in left] == [["ledger", "list"]] * 2
    assert all(re.search(r"pid \d+ is gone", box["owner_proof"]) for box in left)
    (used,) = [box for box in boxes if not box["leftover"]]
    assert (used["run"], used["owner"]) == (bystander["run"], "live")

    text = home("sandboxes", "--provider", "subprocess")
    assert text.returncode == 0
    assert all(len(line) <= 80 for line in text.stdout.splitlines() if "/" not in line)
    assert all(box["id"] in text.stdout for box in boxes)

    dry = home("cleanup", "--dry-run", *LOCAL, dead["run"])
    assert dry.returncode == 0
    assert all(box["id"] in dry.stdout for box in left)
    assert used["id"] not in dry.stdout
    assert "nothing was executed" in dry.stderr

    done = home("cleanup", "--yes", "--json", dead["run"], bystander["run"])
    assert done.returncode == 0, done.stderr
    said = records(done.stdout)
    ends = [record for record in said if record["type"] == "sandbox"]
    assert {record["id"] for record in ends if record["provider"] == "subprocess"} == {
        box["id"] for box in left
    }
    assert {record["provider"] for record in ends} == {"subprocess", "socket"}
    assert all(record["result"] == "GONE" and record["proof"] for record in ends)
    assert said[-1]["type"] == "cleanup"
    assert (said[-1]["unconfirmed"], said[-1]["exit_code"]) == ([], 0)
    assert all(row.proof for row in ledger_rows(home, dead["run"]))
    (told_of,) = [run for run in home.runs() if run["run"] == dead["run"]]
    assert (told_of["status"], told_of["unconfirmed"]) == ("died", 0)
    shown = json.loads(home("show", dead["run"], "--json").stdout)
    assert shown["unconfirmed"] == []
    assert {rollout["sandbox"]["state"] for rollout in shown["rollouts"]} == {"gone"}
    assert [box["id"] for box in boxes_of(home, dead, bystander)] == [used["id"]]


def test_a_run_that_nobody_knows_is_named(home: Home) -> None:
    told = home("cleanup", "--provider", "subprocess", "--dry-run", "nosuchrun")
    assert "no run and no sandbox is known here by 'nosuchrun'" in told.stderr


def test_only_what_is_meant_is_deleted(home: Home) -> None:
    first, second = run_of(home, 1), run_of(home, 1, "second.toml")
    kill(first)
    kill(second)
    old = home("cleanup", "--yes", "--provider", "subprocess", "--older-than", "2h", first["run"])
    assert (old.returncode, old.stdout) == (0, "")
    assert "nothing of that is left over" in old.stderr
    done = home("cleanup", "--yes", "--provider", "subprocess", first["run"][:8])
    assert done.returncode == 0
    assert re.fullmatch(r"GONE +subprocess \S+: .+\n", done.stdout)
    assert {box["run"] for box in boxes_of(home, first, second)} == {second["run"]}


def test_on_a_terminal_the_number_is_typed(home: Home) -> None:
    run = run_of(home, 2)
    kill(run)
    argv = [*ARGV, "cleanup", run["run"], "--provider", "subprocess"]
    for typed, code, said in (
        ("\x03", 130, "interrupted"),
        ("yes\r", 4, "nothing was deleted"),
        ("2\r", 0, "2 GONE"),
    ):
        with PtyProcess(argv, size=(80, 24), env=home.env, cwd=home.work) as term:
            term.wait_for("Type 2 to delete them:")
            term.send(typed)
            assert term.wait_exit() == code
            assert said in term.text


def test_without_a_terminal_nothing_is_deleted_unasked(home: Home) -> None:
    refused = home("cleanup")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "give --yes" in refused.stderr


def test_a_provider_that_cannot_be_asked_is_unknown_and_never_gone(home: Home) -> None:
    """D05: exit codes 5 and 4, and the reason."""
    forget_about(home, "docker")
    answer = home("sandboxes", "--json", "--provider", "docker")
    assert answer.returncode == 5
    (record,) = records(answer.stdout)
    (box,) = record["sandboxes"]
    assert (box["state"], box["owner"], box["price"]) == ("UNKNOWN", "dead", 0.25)
    (report,) = [report for report in record["providers"] if report["provider"] == "docker"]
    assert not report["ok"]
    assert "nonexistent" in report["error"]

    done = home("cleanup", "--yes", "--json", "--provider", "docker")
    assert done.returncode == 4
    *ends, last = records(done.stdout)
    assert [end["result"] for end in ends] == ["UNKNOWN"]
    assert last["unconfirmed"] == [box["key"]]
    assert "GONE" not in done.stdout
    assert re.search(r"^docker.*: could not be asked: ", done.stderr)
    assert ledger_rows(home)[0].proof == ""
    assert "1 sandbox of a dead run is left (1 docker)" in home("ls").stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--older-than", "soon"], "no age"),
        (["--provider", "dokcer"], "did you mean docker?"),
        (["--claim", "nothing-like-it"], "there is no sandbox 'nothing-like-it'"),
    ],
)
def test_what_makes_no_sense_is_refused(home: Home, args: list[str], said: str) -> None:
    done = home("cleanup", "--dry-run", "--provider", "socket", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


# -- what is chosen, and how it ends, without processes


def inventory(*items: Any, reports: tuple[ProviderReport, ...] = ()) -> Inventory:
    return Inventory(items, reports, 1e12)


def test_a_live_owners_sandbox_cannot_be_claimed() -> None:
    """T05."""
    there = inventory(item(0), alive(1), elsewhere(2))
    assert [box.key for box in choose(there, Wanted())] == ["box-0"]
    assert [box.key for box in choose(there, Wanted(claims=("box-2", "box-2", "box-0")))] == [
        "box-0",
        "box-2",
    ]
    with pytest.raises(click.UsageError, match="can't be claimed: its owner is alive"):
        choose(there, Wanted(claims=("box-1",)))


def test_a_claim_is_by_a_beginning_that_tells_it() -> None:
    items = [elsewhere(1), elsewhere(2), item(3, id="abcdef123456")]
    assert claimed("abcdef", items).key == "box-3"
    with pytest.raises(click.UsageError, match="2 sandboxes are meant"):
        claimed("0000000000", items)
    with pytest.raises(click.UsageError, match="there is no sandbox 'abc'"):
        claimed("abc", items)


def test_what_has_no_known_age_is_not_older() -> None:
    there = inventory(item(0, created=None), item(1))
    assert [box.key for box in choose(there, Wanted(older_than=60.0))] == ["box-1"]


@pytest.mark.parametrize("nasty", ["[/x]", "\x1b]0;owned\x07", "a\nb\r", "日本語" * 30, "\u202egnp.exe"])
def test_hostile_text_is_made_safe_and_lines_fit(nasty: str) -> None:
    """U01, U02."""
    fields = ("id", "name", "run", "rollout", "host", "owner_proof", "why", "status")
    for line in item_lines([item(0, **dict.fromkeys(fields, nasty), leftover=False, claimable=True)], 1e9):
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e]", line)
        assert len(line) <= 110


async def test_an_interrupted_cleanup_tells_what_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was asked goes on for a bounded time; then it is UNKNOWN, and the exit code says interrupted."""
    halted = False

    async def hangs(
        ledger: Any, items: Any, *, on_result: Any, halt: asyncio.Event, **_: Any
    ) -> list[Outcome]:
        nonlocal halted
        on_result(Outcome(items[0], "GONE", "docker: no such container"))
        os.kill(os.getpid(), signal.SIGINT)
        await halt.wait()
        halted = True
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr("vf_core.sandboxes.cleanup.clean", hangs)
    monkeypatch.setattr(cleanup, "LAST_SECONDS", 0.05)
    code = await cleanup._clean(
        Ledger.open(tmp_path / "l.db"), [item(0), item(1)], inventory(), Wanted(yes=True)
    )
    out, err = capsys.readouterr()
    assert halted
    assert code == 130
    assert [line.split()[0] for line in out.splitlines()] == ["GONE", "UNKNOWN"]
    assert "SIGINT" in err
    assert "1 GONE, 1 UNKNOWN" in err
