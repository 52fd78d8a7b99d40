"""A provider that is down pauses launching instead of burning every rollout."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from doubles.engine_kit import engine_kit, script_config
from doubles.stepped_loop import SteppedLoop
from vf_core.engine.breaker import FIRST_PAUSE, LIMIT, LONGEST_PAUSE
from vf_core.engine.launching import Launching
from vf_core.errors import SandboxError
from vf_core.events import types as ev
from vf_core.runtimes.subprocess import SubprocessRuntime

CALL = (
    'curl -s -o /dev/null -H "Authorization: Bearer $SECRET" '
    '-d \'{"messages": [{"role": "user", "content": "x"}]}\' $URL/chat/completions; exit 1'
)


class Queue:
    """A scheduler's switch and queue, without the jobs."""

    class Job:
        class spec:
            id = "0000-0"

    def __init__(self, waiting: int = 1000) -> None:
        self.paused = False
        self.concurrency = 8
        self.waiting = waiting
        self.trials = 0

    def pump(self) -> None: ...

    def launch_one(self) -> Any:
        self.trials += 1
        return self.Job


class Bench:
    """A switch under test on a loop whose time passes at once."""

    def __init__(self, viewed: bool = True) -> None:
        self.loop = SteppedLoop()
        self.queue, self.events, self.gave_up = Queue(), list[ev.Event](), list[str]()
        self.viewed = viewed
        self.switch = Launching(
            self.queue,  # type: ignore[arg-type]
            self.events.append,
            lambda: self.viewed,
            self.gave_up.append,
        )

    def say(self, why: str, rollout: str = "0009-0", times: int = 1) -> None:
        async def work() -> None:
            for _ in range(times):
                self.switch.used(rollout, "docker", why)

        self.loop.do(work())

    def reason(self) -> str:
        return [e for e in self.events if isinstance(e, ev.RunLaunching)][-1].reason


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.switch.close()
    made.loop.close()


def test_failures_in_a_row_pause_and_trials_find_the_provider_back(bench: Bench) -> None:
    bench.say("no answer", times=LIMIT - 1)
    bench.say("")
    bench.say("no answer", times=LIMIT - 1)
    assert not bench.queue.paused
    bench.say("no answer")
    assert bench.queue.paused
    assert bench.reason().startswith(f"docker failed {LIMIT} times in a row: no answer; next try in 30 s")
    # What was under way fails, too: no reason to wait longer.
    bench.say("no answer", times=20)
    bench.loop.advance(FIRST_PAUSE + 0.1)
    assert bench.queue.trials == 1
    bench.say("still down", rollout="0000-0")
    assert "next try in 60 s" in bench.reason()
    bench.loop.advance(59)
    assert bench.queue.trials == 1
    bench.loop.advance(2)
    assert bench.queue.trials == 2
    bench.say("", rollout="0000-0")
    assert not bench.queue.paused
    bench.loop.advance(10_000)
    assert bench.queue.trials == 2
    assert bench.gave_up == []


def test_the_users_pause_stands_and_lifting_it_tries_at_once(bench: Bench) -> None:
    bench.say("no answer", times=LIMIT)
    assert not bench.switch.paused_by_user
    bench.loop.do(_async(bench.switch.set, paused=True))
    assert bench.switch.paused_by_user
    bench.say("")
    assert bench.queue.paused
    bench.loop.advance(10_000)
    assert bench.queue.trials == 0
    bench.loop.do(_async(bench.switch.set, paused=False))
    bench.say("no answer", times=LIMIT - 1)
    assert not bench.queue.paused


def test_a_trial_that_says_nothing_of_the_provider_is_followed_by_another(bench: Bench) -> None:
    bench.say("no answer", times=LIMIT)
    bench.loop.advance(FIRST_PAUSE + 0.1)
    bench.loop.do(_async(bench.switch.ended, "0000-0"))
    bench.loop.advance(FIRST_PAUSE + 0.1)
    assert bench.queue.trials == 2


def test_an_unwatched_run_gives_up_at_once_what_never_worked_and_late_what_did() -> None:
    bench = Bench(viewed=False)
    bench.say("no answer", times=LIMIT)
    assert len(bench.gave_up) == 1
    bench = Bench(viewed=False)
    bench.say("")
    bench.say("no answer", times=LIMIT)
    waited = 0.0
    while not bench.gave_up:
        bench.loop.advance(LONGEST_PAUSE + 1)
        waited += LONGEST_PAUSE
        bench.say("still down", rollout="0000-0")
    assert waited >= 4 * LONGEST_PAUSE


async def _async(call: Any, *args: Any, **options: Any) -> None:
    call(*args, **options)


async def test_an_unwatched_run_ends_instead_of_failing_every_rollout(tmp_path: Path) -> None:
    config = script_config(tmp_path, [CALL] * 12, max_concurrent=1)
    async with engine_kit(config) as (kit, run):
        assert await run == 5
    assert kit.state.totals.error == LIMIT
    assert kit.state.totals.stopped == 12 - LIMIT
    assert kit.state.status == "failed"
    assert f"the model provider failed {LIMIT} times in a row" in kit.state.message
    assert kit.state.unconfirmed == set()
    assert {r.stop_condition for r in kit.state.rollouts.values() if r.status == "stopped"} == {"run_failed"}


async def test_a_watched_run_waits_for_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create, down = SubprocessRuntime._create, True

    async def refuse(self: SubprocessRuntime, box: Any) -> None:
        if down:
            raise SandboxError("the engine is stopped")
        await create(self, box)

    monkeypatch.setattr(SubprocessRuntime, "_create", refuse)
    config = script_config(tmp_path, ["touch solved"] * 12, max_concurrent=1)
    async with engine_kit(config) as (kit, run):
        kit.engine.viewers(1)
        await kit.until(lambda: kit.state.paused)
        assert kit.state.totals.error + kit.state.totals.active == LIMIT
        assert "sandbox provider subprocess failed" in kit.state.pause_reason
        assert "the engine is stopped" in kit.state.pause_reason
        down = False
        assert (await kit.engine.command("unpause")).ok
        await kit.until(lambda: kit.state.over)
        kit.engine.viewers(0)
        assert await asyncio.wait_for(run, 60) == 3
    assert kit.state.totals.completed == 12 - LIMIT
    assert kit.state.unconfirmed == set()
