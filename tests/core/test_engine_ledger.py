"""What an engine writes down of its sandboxes, and what becomes of a run when that is impossible."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from doubles.engine_kit import engine_kit, script_config
from vf_core.config.paths import state_dir
from vf_core.events import types as ev
from vf_core.runtimes.lifecycle import State
from vf_core.sandboxes.ledger import Ledger


async def test_every_sandbox_is_in_the_ledger_while_it_lives_and_after(tmp_path: Path) -> None:
    config = script_config(tmp_path, ["exec sleep 600", "touch solved"])
    async with engine_kit(config) as (kit, _):
        await kit.running("0000-0")
        await kit.until(lambda: kit.rollout("0001-0").ended is not None)
        ledger = Ledger.open()
        live = {row.rollout: row for row in await ledger.read(unproven=True, run=kit.run_dir.run_id)}
        ledger.close()
        row = live["0000-0"]
        box = kit.rollout("0000-0").sandbox
        assert box is not None
        assert (row.kind, row.name, row.id, row.attempt) == ("subprocess", box.name, box.id, 1)
        assert (row.owner.pid, row.owner.run) == (os.getpid(), kit.run_dir.run_id)
        assert row.owner.run_dir == str(kit.run_dir.path)
    ledger = Ledger.open()
    done = {row.rollout: row for row in ledger.rows(run=kit.run_dir.run_id)}
    ledger.close()
    assert {row.state for row in done.values()} == {State.GONE}
    assert all(row.proof for row in done.values())


async def test_local_sandboxes_do_without_a_ledger_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (state_dir() / "sandboxes.db").mkdir(parents=True)
    async with engine_kit(script_config(tmp_path, ["touch solved"] * 3)) as (kit, run):
        assert await run == 0
    warnings = [e.message for e in kit.of(ev.Log) if e.level == "warning"]
    assert len(warnings) == 1
    assert "sandboxes.db" in warnings[0]
    assert kit.state.totals.completed == 3
