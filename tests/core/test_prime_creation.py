"""Making a Prime sandbox when the provider is slow, refuses, or its answer is lost: nothing is left behind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from doubles.lifecycle_contract import states, watched
from doubles.prime import kit
from doubles.prime.kit import OPERATIONS, QUICK, runtime
from doubles.prime.server import PrimeDouble
from vf_core.errors import SandboxError, SandboxUnconfirmedError
from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.prime import client as clients


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PrimeDouble]:
    yield from kit.serving(monkeypatch, tmp_path)


async def until(condition, seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


# ---------------------------------------------------------------------- booting


async def test_the_id_is_known_before_it_runs(double):
    double.options.boot_polls = 3
    box = runtime()
    moves = watched(box)
    await box.start()
    assert next(move.state for move in moves if move.id) is State.STARTING
    assert moves[-1].state is State.LIVE
    assert "PENDING" in [move.detail for move in moves]
    await box.stop_confirmed()


async def test_an_image_build_is_told(double):
    double.options.build_polls = 2
    box = runtime(image="debian:12")
    moves = watched(box)
    await box.start()
    assert any("VM image of debian:12" in move.detail for move in moves)
    assert box.info()["image_cached"] is False
    await box.stop_confirmed()


async def test_one_that_stays_pending_is_given_up_and_removed(double):
    double.options.boot_polls = -1
    box = runtime(pace=replace(QUICK, boot=0.2))
    with pytest.raises(SandboxError, match=r"does not run after .* PENDING"):
        await box.start()
    assert box.state is State.FAILED
    await box.stop_confirmed()
    assert double.live() == []


async def test_an_image_build_without_end_is_given_up(double):
    double.options.build_polls = 10**6
    box = runtime(pace=replace(QUICK, build=0.2))
    with pytest.raises(SandboxError, match=r"does not run after .* VM image"):
        await box.start()
    await box.stop_confirmed()
    assert double.live() == []


async def test_a_stop_does_not_wait_for_a_slow_boot(double):
    double.options.boot_polls = -1
    box = runtime(pace=replace(QUICK, boot=600, boot_delays=(0.0, 600.0)))
    starting = asyncio.ensure_future(box.start())
    await until(lambda: box.sandbox_id)
    await asyncio.wait_for(box.stop_confirmed(), 60)
    with pytest.raises(SandboxError, match="was stopped"):
        await starting
    assert box.state is State.GONE
    assert double.live() == []


async def test_one_that_ends_while_it_boots_says_why(double):
    double.options.boot_polls = -1
    box = runtime(image="no/such:image")
    starting = asyncio.ensure_future(box.start())
    await until(lambda: box.sandbox_id)
    await asyncio.to_thread(double.expire, box.sandbox_id, "ERROR", "IMAGE_PULL_FAILED", "manifest unknown")
    with pytest.raises(
        SandboxError, match=r"IMAGE_PULL_FAILED.*no/such:image could not be pulled.*manifest unknown"
    ):
        await starting
    await box.stop_confirmed()


async def test_a_gateway_that_comes_later_is_waited_for(double):
    double.faults.add(OPERATIONS["exec"], "status", status=503, times=2)
    box = runtime()
    await box.start()
    assert (await box.run(["echo", "up"])).stdout == "up\n"
    await box.stop_confirmed()


@pytest.mark.parametrize("status", [404, 405])
async def test_a_platform_that_cannot_be_asked_about_many(double, status):
    double.faults.add(OPERATIONS["look"], "status", status=status, times=-1)
    boxes = [runtime(f"b{n}") for n in range(3)]
    await asyncio.gather(*(box.start() for box in boxes))
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))
    assert double.faults.count(OPERATIONS["look"]) == 1


async def test_many_booting_sandboxes_are_asked_about_together(double):
    double.options.boot_polls = 2
    boxes = [runtime(f"b{n}") for n in range(30)]
    await asyncio.gather(*(box.start() for box in boxes))
    assert double.faults.count(OPERATIONS["look"]) < 30
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("status", "text"), [(422, "bad pair"), (400, "too long"), (402, "Payment"), (403, "no")]
)
async def test_a_refusal_is_shown_asked_once_and_leaves_nothing_in_doubt(double, status, text):
    """R29."""
    double.faults.add(OPERATIONS["create"], "status", status=status, times=-1, body={"detail": text})
    box = runtime()
    with pytest.raises(SandboxError, match=text):
        await box.start()
    assert box.state is State.FAILED
    assert double.faults.count(OPERATIONS["create"]) == 1
    await box.stop_confirmed()
    assert box.state is State.GONE
    assert str(status) in box.proof or text in box.proof


async def test_a_wrong_key_is_told_before_anything_is_asked_for(double, monkeypatch):
    monkeypatch.setenv("PRIME_API_KEY", "wrong")
    box = runtime()
    with pytest.raises(SandboxError, match=r"unauthorized.*PRIME_API_KEY"):
        await box.start()
    await box.stop_confirmed()
    assert "never asked" in box.proof
    assert double.faults.count(OPERATIONS["create"]) == 0


async def test_a_provider_that_is_not_there_was_asked_for_nothing(monkeypatch, tmp_path):
    with PrimeDouble() as gone:
        pass
    for name, value in {**gone.env, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    box = runtime()
    with pytest.raises(SandboxError, match="cannot be asked for a sandbox"):
        await box.start()
    await box.stop_confirmed()
    assert "never asked" in box.proof


async def test_a_provider_that_does_not_answer_is_waited_for_once(double):
    double.faults.add(OPERATIONS["list"], "hang", seconds=600, times=-1)
    boxes = [runtime(f"b{n}", pace=replace(QUICK, call=0.3)) for n in range(50)]
    results = await asyncio.wait_for(
        asyncio.gather(*(box.start() for box in boxes), return_exceptions=True), 20
    )
    assert {str(e) for e in results} == {"Prime cannot be asked for a sandbox: no answer within 0.3 s"}
    assert double.faults.count(OPERATIONS["list"]) == 1
    double.faults.clear()
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))


async def test_rate_limits_are_waited_out(double):
    double.faults.add(OPERATIONS["create"], "status", status=429, times=2)
    box = runtime()
    await box.start()
    await box.stop_confirmed()
    assert double.created == 1


# ---------------------------------------------------------------------- lost answers


async def test_an_answer_that_is_lost_makes_one_sandbox(double):
    double.faults.add(OPERATIONS["create"], "reset_after")
    box = runtime()
    await box.start()
    assert double.created == 1
    await box.stop_confirmed()
    assert double.live() == []


@pytest.mark.parametrize("dedupe", [True, False])
async def test_all_that_lost_answers_made_is_found_by_name(double, dedupe):
    """A client without an id: the SDK asked three times, and maybe as many sandboxes were made."""
    double.options.dedupe = dedupe
    other = runtime("another")
    await other.start()
    double.faults.add(OPERATIONS["create"], "reset_after", times=3)
    bystander = double.bystander("box")
    box = runtime("box")
    with pytest.raises(SandboxError):
        await box.start()
    assert not box.sandbox_id
    assert len([one for one in double.live() if one["name"] == "box"]) == (2 if dedupe else 4)
    await box.stop_confirmed()
    assert box.state is State.GONE
    assert box.sandbox_id
    assert {one["id"] for one in double.live()} == {bystander, other.sandbox_id}
    await other.stop_confirmed()


async def test_a_create_call_that_hangs_for_ever_after_its_work(double):
    double.faults.add(OPERATIONS["create"], "hang_after", seconds=600)
    box = runtime(pace=replace(QUICK, create=0.4))
    with pytest.raises(SandboxError, match=r"no answer within 0\.4 s"):
        await box.start()
    await box.stop_confirmed()
    assert box.state is State.GONE
    assert double.created == 1
    assert double.live() == []


async def test_stops_while_create_calls_are_under_way(double):
    """R01: it is made at once, and answered later."""
    double.faults.add(OPERATIONS["create"], "late", seconds=0.3, times=4)
    boxes = [runtime(f"b{n}") for n in range(4)]
    starts = [asyncio.ensure_future(box.start()) for box in boxes]
    await until(lambda: double.created == 4)
    for start in starts:
        start.cancel()
    assert all(
        isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*starts, return_exceptions=True)
    )
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))
    assert {box.state for box in boxes} == {State.GONE}
    assert double.live() == []


async def test_a_stop_does_not_wait_for_an_answer_when_the_list_shows_it(double):
    double.faults.add(OPERATIONS["create"], "hang_after", seconds=600)
    box = runtime(pace=replace(QUICK, create=60, create_grace=0.1))
    start = asyncio.ensure_future(box.start())
    await until(lambda: double.created == 1)
    start.cancel()
    await asyncio.wait_for(box.stop_confirmed(), 60)
    assert double.live() == []
    assert box.state is State.GONE


async def test_those_that_wait_for_a_free_connection_were_not_asked_for(double):
    """More create calls hang than are sent at once."""
    double.faults.add(OPERATIONS["create"], "hang_after", seconds=600, times=-1)
    boxes = [runtime(f"b{n}", pace=replace(QUICK, create=60, create_grace=0.1)) for n in range(40)]
    starts = [asyncio.ensure_future(box.start()) for box in boxes]
    await until(lambda: double.created == 32)
    await asyncio.wait_for(asyncio.gather(*(box.stop_confirmed() for box in boxes)), 60)
    await asyncio.gather(*starts, return_exceptions=True)
    assert double.created == 32
    assert double.live() == []
    assert [box.proof for box in boxes].count("Prime was never asked to make it") == 8


async def test_those_whose_answers_were_lost_are_looked_for_together(double):
    double.faults.add(OPERATIONS["create"], "hang_after", seconds=600, times=-1)
    boxes = [runtime(f"b{n}", pace=replace(QUICK, create=0.5)) for n in range(30)]
    results = await asyncio.gather(*(box.start() for box in boxes), return_exceptions=True)
    assert all(isinstance(e, SandboxError) for e in results)
    assert double.created == 30
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))
    assert double.live() == []
    assert double.faults.count(OPERATIONS["list"]) < 30


async def test_one_that_appears_after_its_create_call_was_cut_off(double):
    """It is made only after the client has given up."""
    double.faults.add(OPERATIONS["create"], "hang", seconds=0.6)
    box = runtime(pace=replace(QUICK, create=0.2, settle=1.5))
    with pytest.raises(SandboxError):
        await box.start()
    assert double.created == 0
    await box.stop_confirmed()
    assert double.created == 1
    assert box.state is State.GONE
    assert double.live() == []


async def test_while_one_may_still_appear_nothing_is_claimed(double):
    double.faults.add(OPERATIONS["create"], "hang", seconds=2.5)
    box = runtime(pace=replace(QUICK, create=0.1, settle=60))
    with pytest.raises(SandboxError):
        await box.start()
    with pytest.raises(SandboxUnconfirmedError, match="may still appear"):
        await box.stop_confirmed(timeout=1.5)
    assert box.state is State.UNKNOWN
    await until(lambda: double.created == 1)
    with pytest.raises(SandboxUnconfirmedError):
        await box.stop_confirmed(timeout=2)
    assert double.live() == []
    box._box.handle.claim.quiet_from = 0
    await box.stop_confirmed()


async def test_a_lost_create_call_while_the_list_is_down_stays_unknown(double):
    double.faults.add(OPERATIONS["create"], "reset_after", times=3)
    box = runtime()
    moves = watched(box)
    with pytest.raises(SandboxError):
        await box.start()
    double.faults.add(OPERATIONS["list"], "status", status=500, times=-1)
    with pytest.raises(SandboxUnconfirmedError, match="injected 500"):
        await box.stop_confirmed()
    assert box.state is State.UNKNOWN
    assert box._box.handle.client is None
    double.faults.clear()
    await box.stop_confirmed()
    assert states(moves)[-1] is State.GONE
    assert double.live() == []


async def test_the_client_is_shared_and_closed_with_the_last_sandbox(double):
    boxes = [runtime(f"b{n}") for n in range(3)]
    await asyncio.gather(*(box.start() for box in boxes))
    assert len({id(box._box.handle.client) for box in boxes}) == 1
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))
    assert clients._clients.get(asyncio.get_running_loop()) == {}
    await until(lambda: not clients._closing)


async def test_creation_is_paced_and_a_stop_empties_the_queue(double, monkeypatch, tmp_path):
    """R31."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    boxes = [runtime(f"b{n}", creates_per_min=1) for n in range(5)]
    starts = [asyncio.ensure_future(box.start()) for box in boxes]
    await until(lambda: any(box.state is State.LIVE for box in boxes))
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))
    await asyncio.gather(*starts, return_exceptions=True)
    assert double.created == 1
    assert {box.state for box in boxes} == {State.GONE}
    assert len([box for box in boxes if re.search("never asked", box.proof)]) == 4
