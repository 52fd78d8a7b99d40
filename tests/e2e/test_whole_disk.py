"""When nothing more can be written, a run ends, tells why and leaves no sandbox; the files stay whole (X08)."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.command_line import ARGV, Home, alive, records, wait_for


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    (tmp_path / "tmp").mkdir()
    home.env["TMPDIR"] = str(tmp_path / "tmp")
    yield home
    home.stop_all()


def sandboxes(home: Home) -> list[str]:
    return [path.name for path in (home.path / "tmp").glob("vf-tui-box-*/*")]


def test_x08_a_full_disk_ends_the_run_and_spoils_nothing(home: Home) -> None:
    config = home.config(["touch solved"] * 60, head="max_concurrent = 2")
    done = subprocess.run(
        ["bash", "-c", 'ulimit -f 24; exec "$@"', "-", *ARGV, "run", str(config), "--json"],
        cwd=home.work, env=home.env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    launch, *_, last = records(done.stdout)
    assert (done.returncode, last["status"]) == (1, "failed"), done.stderr
    assert "cannot write to" in last["message"]
    assert last["counts"]["completed"] >= 1
    assert last["counts"]["stopped"] >= 30
    assert last["unconfirmed"] == []
    assert sandboxes(home) == []
    kept = (Path(launch["dir"]) / "traces.jsonl").read_text()
    assert kept.endswith("\n")
    assert all(record["is_completed"] for record in records(kept))


def test_x08_a_run_whose_directory_goes_away_ends(home: Home) -> None:
    process = home.start(
        "run",
        home.config(["sleep 600", *["sleep 0.1; touch solved"] * 40], head="max_concurrent = 2"),
        "--json",
    )
    launch = json.loads(wait_for(lambda: home.out().splitlines(), "the launch record")[0])
    wait_for(lambda: home.out().count('"completed"') >= 2, "two results")
    shutil.rmtree(launch["dir"])
    assert process.wait(60) == 1, home.err()
    last = records(home.out())[-1]
    assert (last["status"], last["exit_code"], last["unconfirmed"]) == ("failed", 1, [])
    assert "cannot write to" in last["message"]
    assert last["counts"]["stopped"] >= 1
    assert sandboxes(home) == []
    assert not alive(launch["pid"])
    assert not Path(launch["dir"]).exists()
