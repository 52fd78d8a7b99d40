"""Commands on a running engine: what they do, what repeats say, and who wins when they race."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from functools import partialmethod
from pathlib import Path

import aiohttp
import pytest

from doubles.engine_kit import DEADLINE, Kit, engine_kit, script_config
from vf_core.errors import SandboxError
from vf_core.events import types as ev
from vf_core.events.state import ENDED
from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.subprocess import SubprocessRuntime

LONG = "touch solved; echo started; exec sleep 600"


async def ask(kit: Kit, name: str, *targets: str, **args: object) -> tuple[bool, tuple[str, ...]]:
    reply = await kit.engine.command(name, targets, args, "test")
    return reply.ok, reply.changed


async def test_stop_waits_for_nothing_and_its_proof_comes_by_itself(tmp_path: Path) -> None:
    async with engine_kit(script_config(tmp_path, [LONG, LONG])) as (kit, _):
        kit.engine.watch(frozenset({"0000-0"}))
        await kit.running("0001-0")
        # That its program is started is told before it runs: only what it prints says that it has an end of its own.
        async with asyncio.timeout(DEADLINE):
            while not kit.rollout("0000-0").output:
                await asyncio.sleep(0.02)
        assert await ask(kit, "stop", "0000-0") == (True, ("0000-0",))
        rollout = kit.rollout("0000-0")
        assert (rollout.status, rollout.stop_condition) == ("stopped", "user_stopped")
        assert rollout.program is not None
        assert rollout.program.meaning == "exit 143 terminated"
        box = rollout.sandbox
        assert box is not None
        assert box.state is not State.GONE
        assert box.name in kit.state.unconfirmed
        assert await ask(kit, "stop", "0000-0") == (True, ())
        await kit.until(lambda: box.state is State.GONE)
        assert [state for state, *_ in box.history][-4:] == ["stopping", "sent", "checking", "gone"]
        assert kit.state.unconfirmed == set()
        assert await ask(kit, "confirm_stop", "0000-0") == (True, ())
        assert kit.rollout("0001-0").status == "active"


async def test_what_was_stopped_is_told_also_where_the_proof_is_wanting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(self: SubprocessRuntime, box: object) -> None:
        raise SandboxError("the provider is silent")

    async with engine_kit(script_config(tmp_path, [LONG, LONG])) as (kit, _):
        await kit.running("0000-0")
        with monkeypatch.context() as patch:
            patch.setattr(SubprocessRuntime, "_probe", silent)
            assert await ask(kit, "confirm_stop", "0000-0") == (False, ("0000-0",))
            assert kit.rollout("0000-0").status == "stopped"
            assert await ask(kit, "stop_all", confirm=True) == (False, ("0000-0", "0001-0"))
        assert (await ask(kit, "confirm_stop", "0000-0", "0001-0"))[0]
    assert kit.state.unconfirmed == set()


async def test_confirm_stop_of_a_live_one(tmp_path: Path) -> None:
    async with engine_kit(script_config(tmp_path, [LONG])) as (kit, run):
        await kit.running()
        assert await ask(kit, "confirm_stop", "0000-0") == (True, ("0000-0",))
        sandbox = kit.rollout().sandbox
        assert sandbox is not None
        assert sandbox.state is State.GONE
        assert await run == 0


async def test_restart_is_a_new_attempt_in_a_new_sandbox(tmp_path: Path) -> None:
    script = "[ -e left ] && exit 9; touch left; exec sleep 600"
    async with engine_kit(script_config(tmp_path, [script])) as (kit, _):
        await kit.running()
        first = kit.rollout().sandbox
        assert first is not None
        assert await ask(kit, "restart", "0000-0") == (True, ("0000-0",))
        assert first.state is State.GONE
        await kit.running(attempt=2)
        rollout = kit.rollout()
        assert [(a.number, a.reason, a.outcome) for a in rollout.attempts] == [
            (1, "first", "stopped"),
            (2, "restart", ""),
        ]
        assert rollout.sandbox is not None
        assert rollout.sandbox.name != first.name
        assert rollout.turns == rollout.calls == 0
    assert [r["info"]["vf_tui"]["attempt"] for r in kit.records()] == [1, 2]


async def test_a_finished_rollout_can_be_restarted_while_others_run(tmp_path: Path) -> None:
    async with engine_kit(script_config(tmp_path, ["exit 1", LONG])) as (kit, _):
        await kit.until(lambda: "0000-0" in kit.state.rollouts and kit.rollout().status == "error")
        assert await ask(kit, "retry_failed") == (True, ("0000-0",))
        await kit.until(lambda: kit.rollout().attempt == 2 and kit.rollout().status == "error")
        assert kit.state.totals.error == 1


async def test_a_run_that_is_over_goes_on_while_somebody_watches(tmp_path: Path) -> None:
    async with engine_kit(script_config(tmp_path, ["exit 1"])) as (kit, run):
        kit.engine.viewers(1)
        await kit.until(lambda: kit.state.over)
        assert kit.state.exit_code == 3
        assert not run.done()
        assert await ask(kit, "restart", "0000-0") == (True, ("0000-0",))
        await kit.until(lambda: kit.rollout().attempt == 2 and kit.state.over)
        # A restart that came to nothing: the run's end is not told again.
        with kit.engine.scheduler.promise():
            kit.engine.viewers(1)
            for _ in range(5):
                await asyncio.sleep(0)
        kit.engine.viewers(0)
        assert await run == 3
        assert len(kit.of(ev.RunFinished)) == 2


async def test_a_restart_needs_proof_or_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine_kit(script_config(tmp_path, [LONG, LONG])) as (kit, _):
        await kit.running()
        with monkeypatch.context() as broken:

            async def cannot_ask(self: object, box: object) -> None:
                raise OSError("the host does not answer")

            broken.setattr(SubprocessRuntime, "_probe", cannot_ask)
            patient = SubprocessRuntime.stop_confirmed
            broken.setattr(SubprocessRuntime, "stop_confirmed", partialmethod(patient, timeout=0.3))
            reply = await kit.engine.command("restart", ("0000-0",), {}, "test")
            assert not reply.ok
            assert "UNKNOWN" in reply.message
            assert "force" in reply.message
            assert kit.rollout().attempt == 1
            assert kit.rollout().status == "stopped"
            assert (await kit.engine.command("restart", ("0000-0",), {"force": True}, "test")).ok
            await kit.running(attempt=2)
            old = kit.rollout().attempts[0].sandbox
            assert kit.state.sandboxes[old].state is State.UNKNOWN
        assert await ask(kit, "confirm_stop", "0000-0") == (True, ("0000-0",))
        assert kit.state.unconfirmed == set()


async def test_a_restart_of_the_last_rollout_keeps_the_run_from_ending(tmp_path: Path) -> None:
    async with engine_kit(script_config(tmp_path, [LONG])) as (kit, run):
        await kit.running()
        await ask(kit, "stop", "0000-0")
        assert await ask(kit, "restart", "0000-0") == (True, ("0000-0",))
        await kit.running(attempt=2)
        assert not run.done()


async def test_queued_rollouts_are_stopped_without_starting(tmp_path: Path) -> None:
    async with engine_kit(script_config(tmp_path, [LONG, LONG, LONG], max_concurrent=1)) as (kit, _):
        await kit.running("0000-0")
        assert await ask(kit, "stop", "0002-0") == (True, ("0002-0",))
        assert await ask(kit, "stop", "0002-0") == (True, ())
        assert kit.rollout("0002-0").status == "stopped"
        assert kit.rollout("0002-0").attempt == 0
        assert await ask(kit, "restart", "0001-0") == (True, ())
        assert await ask(kit, "restart", "0002-0") == (True, ("0002-0",))
        assert kit.rollout("0002-0").status == "queued"


async def test_pause_and_concurrency(tmp_path: Path) -> None:
    async with engine_kit(script_config(tmp_path, [LONG] * 4, max_concurrent=1)) as (kit, _):
        await kit.running("0000-0")
        assert await ask(kit, "pause") == (True, ("run",))
        assert await ask(kit, "pause") == (True, ())
        assert await ask(kit, "set_concurrency", value=3) == (True, ("run",))
        await ask(kit, "stop", "0000-0")
        assert kit.state.totals.active == 0
        assert kit.state.paused
        assert await ask(kit, "unpause") == (True, ("run",))
        await kit.until(lambda: kit.state.totals.active == 3)
        assert (await kit.engine.command("set_concurrency", (), {"value": 0}, "test")).ok is False


@pytest.mark.parametrize(
    ("name", "targets", "words"),
    [
        ("explode", (), "no command"),
        ("stop", (), "at least one"),
        ("stop", ("nope",), "no rollout nope"),
        ("pause", ("0000-0",), "whole run"),
    ],
)
async def test_wrong_commands_are_refused_in_words(
    tmp_path: Path, name: str, targets: tuple[str, ...], words: str
) -> None:
    async with engine_kit(script_config(tmp_path, [LONG])) as (kit, _):
        await kit.running()
        reply = await kit.engine.command(name, targets, {}, "test")
        assert not reply.ok
        assert words in reply.message
        assert kit.of(ev.CommandFailed)[-1].command == reply.id
        assert kit.rollout().status == "active"


async def test_stop_all_ends_the_run(tmp_path: Path) -> None:
    async with engine_kit(script_config(tmp_path, [LONG] * 6, max_concurrent=3)) as (kit, run):
        await kit.until(lambda: kit.state.totals.active == 3)
        ok, changed = await ask(kit, "stop_all")
        assert ok
        assert len(changed) == 6
        assert await run == 0
        assert kit.state.status == "stopped"
        assert kit.state.totals.stopped == 6
        assert kit.state.unconfirmed == set()
    assert len(kit.records()) == 3


async def test_tail_rollout_is_stopped_and_the_rest_is_whole(tmp_path: Path) -> None:
    async with engine_kit(script_config(tmp_path, ["true"] * 49 + [LONG])) as (kit, run):
        await kit.until(lambda: kit.state.totals.completed == 49)
        await ask(kit, "confirm_stop", "0049-0")
        await run
    assert kit.state.totals.stopped == 1
    assert len(kit.records()) == 50
    assert len(kit.of(ev.RunFinished)) == 1


async def test_code_that_swallows_its_cancellation_is_left_behind(tmp_path: Path) -> None:
    config = script_config(tmp_path, ["true"], hook="setup swallows", retries__rollout={"max_retries": 3})
    async with engine_kit(config) as (kit, run):
        await kit.until(lambda: "0000-0" in kit.state.rollouts and kit.rollout().phase == "setup")
        assert await ask(kit, "confirm_stop", "0000-0") == (True, ("0000-0",))
        await run
    rollout = kit.rollout()
    assert (rollout.status, rollout.attempt) == ("stopped", 1)
    assert kit.state.unconfirmed == set()


async def test_a_stop_is_never_undone_by_a_retry(tmp_path: Path) -> None:
    config = script_config(
        tmp_path, ["trap 'exit 5' TERM; echo up; sleep 600 & wait"], retries__rollout={"max_retries": 5}
    )
    async with engine_kit(config) as (kit, run):
        await kit.running()
        await ask(kit, "stop", "0000-0")
        await run
    assert kit.rollout().attempt == 1
    assert kit.rollout().status == "stopped"


async def test_a_restart_just_before_a_confirm_ends_keeps_its_sandbox_in_view(tmp_path: Path) -> None:
    async with engine_kit(script_config(tmp_path, [LONG, LONG])) as (kit, _):
        await kit.running()
        restarts: list[asyncio.Task[tuple[bool, tuple[str, ...]]]] = []

        def at_once(event: ev.Event) -> None:
            # The old sandbox is gone, and the command that waits for that has not been told yet.
            if isinstance(event, ev.RuntimeChanged) and event.state == State.GONE and not restarts:
                restarts.append(asyncio.create_task(ask(kit, "restart", "0000-0")))

        kit.engine.bus.add_sink(at_once)
        await ask(kit, "confirm_stop", "0000-0")
        assert await restarts[0] == (True, ("0000-0",))
        await kit.running(attempt=2)
        second = kit.rollout().sandbox
        assert second is not None
        assert second.state is State.LIVE
        assert await ask(kit, "confirm_stop", "0000-0") == (True, ("0000-0",))
        assert second.state is State.GONE
    assert kit.state.unconfirmed == set()


@pytest.mark.parametrize("seed", range(12))
async def test_racing_commands(tmp_path: Path, seed: int) -> None:
    """Whatever the order: at most one live sandbox a rollout, one final trace an attempt, the last command wins."""
    rng = random.Random(seed)
    scripts = ["sleep 0.05", "exit 1", "exec sleep 600"]
    config = script_config(tmp_path, scripts, max_concurrent=2, retries__rollout={"max_retries": 1})
    last: dict[str, str] = {}
    live: dict[str, set[str]] = defaultdict(set)
    most = 0

    def watch(event: ev.Event) -> None:
        nonlocal most
        if isinstance(event, ev.RuntimeChanged):
            boxes = live[event.rollout]
            (boxes.discard if State(event.state).settled else boxes.add)(event.sandbox)
            most = max(most, len(boxes))

    async with engine_kit(config) as (kit, run):
        kit.engine.bus.add_sink(watch)
        kit.engine.viewers(1)
        pending = []
        for _ in range(25):
            id = f"000{rng.randrange(3)}-0"
            last[id] = rng.choice(["stop", "confirm_stop", "restart", "restart"])
            pending.append(asyncio.create_task(kit.engine.command(last[id], (id,), {}, "test")))
            await asyncio.sleep(rng.choice([0, 0, 0.001, 0.03]))
        await asyncio.gather(*pending)
        for id, command in last.items():
            rollout = kit.rollout(id)
            if command != "restart":
                assert rollout.status in ENDED, (id, command, rollout.status)
            elif id == "0002-0":
                await kit.until(lambda: kit.rollout("0002-0").status == "active")
        await ask(kit, "shutdown")
        await run
    assert most == 1
    assert kit.state.unconfirmed == set()
    seen = [(r["info"]["vf_tui"]["rollout"], r["info"]["vf_tui"]["attempt"]) for r in kit.records()]
    assert len(seen) == len(set(seen))
    assert {a.number for r in kit.state.rollouts.values() for a in r.attempts if not a.outcome} == set()


async def test_i13_a_secret_is_worth_nothing_once_its_rollout_is_over(tmp_path: Path) -> None:
    scripts = [f"echo $URL $SECRET > {tmp_path}/kept", LONG]
    async with engine_kit(script_config(tmp_path / "runs", scripts)) as (kit, _):
        await kit.until(lambda: "0000-0" in kit.state.rollouts and kit.rollout().status == "completed")
        await kit.running("0001-0")
        url, secret = (tmp_path / "kept").read_text().split()
        async with aiohttp.ClientSession() as client:
            for path in ("/chat/completions", "/models"):
                call = client.post if path.startswith("/chat") else client.get
                async with call(url + path, headers={"Authorization": f"Bearer {secret}"}) as answer:
                    assert answer.status == 401
        assert kit.of(ev.ModelCallStarted) == []
    assert all(record.get("calls", []) == [] for record in kit.records())
