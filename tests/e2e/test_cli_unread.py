"""Whoever reads the output goes away: `vf-tui run … | head`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from doubles.command_line import ARGV, Home, wait_for


def started(home: Home, *args: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """A run whose first record was read, and whose output was closed then."""
    process = subprocess.Popen(
        [*ARGV, "run", str(home.config(["sleep 0.5"] * 2 + ["exec sleep 600"])), "--json", *args],
        cwd=home.work,
        env=home.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stdout is not None
    launch = json.loads(process.stdout.readline())
    process.stdout.close()
    return process, launch


@pytest.mark.parametrize("how", [[], ["--embedded"]])
def test_a_run_whose_output_nobody_reads_goes_on_or_ends_in_order(tmp_path: Path, how: list[str]) -> None:
    home = Home(tmp_path)
    process, launch = started(home, *how)
    assert process.stderr is not None
    told = process.stderr.read()
    assert process.wait(60) != 0
    if how:
        assert "stopping the run and cleaning up" in told
    else:
        assert f"the run goes on: vf-tui attach {launch['run'][:8]}" in told
        assert home.runs()[0]["status"] == "running"
        home("stop", launch["run"], "all")
        wait_for(lambda: home.runs()[0]["status"] != "running", "its end")
    (run,) = home.runs()
    assert (run["status"], run["unconfirmed"], run["errors"]) == ("stopped", 0, 0)
