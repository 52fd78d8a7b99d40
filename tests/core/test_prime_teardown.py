"""The end of a Prime sandbox under each fault: the word is right, and GONE is said only with the provider's proof."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doubles.lifecycle_contract import states, watched
from doubles.prime import kit
from doubles.prime.kit import OPERATIONS, QUICK, runtime
from doubles.prime.server import PrimeDouble
from doubles.sandbox_commands import Output, sh
from vf_core.errors import SandboxUnconfirmedError
from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.prime.runtime import PrimeRuntime

DELETE, GET = OPERATIONS["delete"], OPERATIONS["get"]


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PrimeDouble]:
    yield from kit.serving(monkeypatch, tmp_path)


@pytest.fixture
async def box(double: PrimeDouble) -> AsyncIterator[PrimeRuntime]:
    """Live; whatever a test does to it, it is gone in the end."""
    box = runtime(pace=replace(QUICK, delete=0.3))
    await box.start()
    yield box
    double.faults.clear()
    if double.state.api_key == double.options.api_key:
        await box.stop_confirmed()


# ---------------------------------------------------------------------- healed


@pytest.mark.parametrize(
    "fault",
    [
        {"action": "status", "status": 500, "times": 2},
        {"action": "status", "status": 503, "times": 4},
        {"action": "status", "status": 429, "times": 3},
        {"action": "status", "status": 408},
        {"action": "reset_before", "times": 4},
        {"action": "reset_after"},
        {"action": "hang", "seconds": 5},
        {"action": "hang_after", "seconds": 5},
        {"action": "cut", "seconds": 0},
    ],
    ids=lambda fault: "-".join(map(str, fault.values())),
)
async def test_passing_faults_of_delete_are_outlasted(double, box, fault):
    double.faults.add(DELETE, **fault)
    await box.stop_confirmed(timeout=10)
    assert box.state is State.GONE
    assert double.live() == []


@pytest.mark.parametrize("after", ["terminated", "gone"])
async def test_the_proof_is_what_a_read_says(double, after):
    double.options.after_delete = after
    box = runtime()
    await box.start()
    await box.stop_confirmed()
    assert box.proof == (
        f"Prime says that {box.sandbox_id} is TERMINATED"
        if after == "terminated"
        else f"Prime answers 404: there is no sandbox {box.sandbox_id}"
    )


@pytest.mark.parametrize(
    ("status", "error"), [("TERMINATED", ""), ("TIMEOUT", "TIMEOUT"), ("ERROR", "OOM_KILLED")]
)
async def test_one_that_is_already_gone(double, box, status, error):
    """T07."""
    await asyncio.to_thread(double.expire, box.sandbox_id, status, error)
    await box.stop_confirmed()
    assert status in box.proof


async def test_one_that_somebody_else_deleted(double, box):
    """T07: 404 on delete is success, and the read afterwards is the proof."""
    double.options.after_delete = "gone"
    await double_delete(double, box.sandbox_id)
    await box.stop_confirmed()
    assert "404" in box.proof


async def double_delete(double: PrimeDouble, id: str) -> None:
    await asyncio.to_thread(lambda: double._there(double.state.destroy(double.state.sandboxes[id])))


async def test_passing_faults_of_the_read_are_outlasted(double, box):
    double.faults.add(GET, "status", status=500, times=2)
    await box.stop_confirmed()
    assert box.state is State.GONE


# ---------------------------------------------------------------------- no proof


@pytest.mark.parametrize("status", [401, 403, 402, 500, 503, 400])
async def test_an_end_that_cannot_be_asked_for_is_unknown_and_can_be_tried_again(double, box, status):
    """T07."""
    double.faults.add(DELETE, "status", status=status, times=-1, body={"detail": f"no: {status}"})
    moves = watched(box)
    with pytest.raises(SandboxUnconfirmedError) as caught:
        await box.stop_confirmed(timeout=8)
    told = str(caught.value)
    # The SDK waits a random time between its tries after a 503: our deadline may come first.
    words = {401: "unauthorized", 402: "Payment", 503: "no answer within"}.get(status, str(status))
    assert str(status) in told or words in told
    assert box.sandbox_id in str(caught.value)
    assert states(moves) == [State.STOPPING, State.UNKNOWN]
    assert len(double.live()) == 1
    double.faults.clear()
    await box.stop_confirmed()
    assert box.state is State.GONE


@pytest.mark.parametrize("status", [401, 403, 402, 500])
async def test_a_read_that_fails_proves_nothing(double, box, status):
    double.faults.add(GET, "status", status=status, times=-1)
    with pytest.raises(SandboxUnconfirmedError, match="could not be asked"):
        await box.stop_confirmed(timeout=8)
    assert box.state is State.UNKNOWN
    assert not box.proof


@pytest.mark.parametrize("status", [400, 403, 500])
async def test_a_message_that_contains_404_is_no_proof(double, box, status):
    text = {"detail": "HTTP 404: Sandbox not found"}
    double.faults.add(DELETE, "status", status=status, times=-1, body=text)
    double.faults.add(GET, "status", status=status, times=-1, body=text)
    with pytest.raises(SandboxUnconfirmedError, match="404"):
        await box.stop_confirmed(timeout=8)
    assert box.state is State.UNKNOWN
    assert len(double.live()) == 1


async def test_a_404_on_delete_of_one_that_lives_is_no_proof(double, box):
    double.faults.add(DELETE, "status", status=404)
    with pytest.raises(SandboxUnconfirmedError, match="RUNNING"):
        await box.stop_confirmed(timeout=1)
    assert box.state is State.SURVIVED
    await box.stop_confirmed()
    assert double.live() == []


async def test_a_hang_is_unknown_in_time(double, box):
    """T08."""
    double.faults.add(DELETE, "hang", seconds=600, times=-1)
    with pytest.raises(SandboxUnconfirmedError):
        await asyncio.wait_for(box.stop_confirmed(timeout=1), 60)
    assert box.state is State.UNKNOWN


async def test_a_read_that_hangs_is_unknown_in_time(double, box):
    double.faults.add(GET, "hang", seconds=600, times=-1)
    with pytest.raises(SandboxUnconfirmedError):
        await asyncio.wait_for(box.stop_confirmed(timeout=1), 60)
    assert box.state is State.UNKNOWN


async def test_one_stuck_delete_delays_nobody(double):
    """T08."""
    boxes = [runtime(f"b{n}", pace=replace(QUICK, delete=60)) for n in range(5)]
    await asyncio.gather(*(box.start() for box in boxes))
    double.faults.add(f"{DELETE}{boxes[0].sandbox_id}", "hang", seconds=600, times=-1)
    stuck = asyncio.ensure_future(boxes[0].stop_confirmed(timeout=2))
    await asyncio.gather(*(box.stop_confirmed() for box in boxes[1:]))
    assert not stuck.done()
    with pytest.raises(SandboxUnconfirmedError, match="b0"):
        await stuck
    double.faults.clear()
    await boxes[0].stop_confirmed()


async def test_one_that_lingers_is_looked_at_until_it_ends(double, box):
    double.faults.add("linger", "linger", seconds=0.4)
    moves = watched(box)
    await box.stop_confirmed()
    assert states(moves)[-2:] == [State.CHECKING, State.GONE]
    assert "TERMINATED" in box.proof


async def test_one_that_lingers_longer_than_the_check_survived(double, box):
    double.faults.add("linger", "linger", seconds=1.5)
    with pytest.raises(SandboxUnconfirmedError, match=r"Prime says that .* is RUNNING"):
        await box.stop_confirmed(timeout=0.6)
    assert box.state is State.SURVIVED
    assert not box.proof
    await box.stop_confirmed(timeout=10)
    assert box.state is State.GONE


@pytest.mark.parametrize("status", ["PAUSED", "SUSPENDED", ""])
async def test_an_unknown_status_is_alive(double, box, status):
    """R32."""
    sandbox = double.state.sandboxes[box.sandbox_id]
    double.faults.add(DELETE, "status", status=404, times=-1)
    sandbox.row["status"] = status
    with pytest.raises(SandboxUnconfirmedError):
        await box.stop_confirmed(timeout=0.5)
    assert box.state is State.SURVIVED
    sandbox.row["status"] = "RUNNING"


async def test_a_stop_alone_is_sent_and_no_more(double, box):
    await box.stop()
    assert box.state is State.SENT
    assert not box.proof


async def test_a_restart_after_the_proof_has_nothing_of_the_old(double, box):
    await box.write("old", b"")
    first, handle, key = box.sandbox_id, box._box.handle, box._box.handle.claim.key
    await box.stop_confirmed()
    calls = double.faults.count(DELETE)
    await box.stop_confirmed()
    assert double.faults.count(DELETE) == calls
    await box.start()
    now = box._box.handle
    assert now is not handle
    assert now.claim.key != key
    assert box.sandbox_id not in ("", first)
    assert now.claim.ids == [box.sandbox_id]
    assert not box.proof
    assert double.created == 2


async def test_a_forced_restart_keeps_the_old_one_in_view(double, box):
    first = box.sandbox_id
    double.faults.add(f"{DELETE}{first}", "status", status=403, times=-1)
    await box.start(force=True)
    assert [life.id for life in box.left] == [first]
    assert box.name == "box.2"
    double.faults.clear()
    await box.confirm_left()
    assert [one["id"] for one in double.live()] == [box.sandbox_id]


# ---------------------------------------------------------------------- with programs


async def test_a_program_says_how_it_ended_before_its_sandbox_goes(double, box):
    output = Output()
    running = asyncio.ensure_future(
        box.run_program(
            sh("trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.05; done"), on_output=output
        )
    )
    await asyncio.wait_for(output.came.wait(), 60)
    await box.stop_confirmed()
    result = await running
    assert (result.exit_code, result.stdout) == (7, "up\nbye\n")


async def test_a_program_that_does_not_listen_is_not_waited_for_long(double, box):
    output = Output()
    running = asyncio.ensure_future(
        box.run_program(sh("trap '' TERM; echo up; while :; do sleep 0.05; done"), on_output=output)
    )
    await asyncio.wait_for(output.came.wait(), 60)
    await asyncio.wait_for(box.stop_confirmed(), 60)
    assert (await running).exit_code == 137


async def test_a_gateway_that_hangs_does_not_keep_a_sandbox_alive(double, box):
    output = Output()
    running = asyncio.ensure_future(box.run_program(sh("echo up; sleep 600"), on_output=output))
    await asyncio.wait_for(output.came.wait(), 60)
    double.faults.add(OPERATIONS["exec"], "hang", seconds=600, times=-1)
    await asyncio.wait_for(box.stop_confirmed(), 60)
    assert (await running).exit_code == 137
    assert double.live() == []


async def test_force_waits_for_no_program(double, box):
    output = Output()
    running = asyncio.ensure_future(box.run_program(sh("trap '' TERM; echo up; sleep 600"), on_output=output))
    await asyncio.wait_for(output.came.wait(), 60)
    double.faults.add(OPERATIONS["exec"], "hang", seconds=600, times=-1)
    stopping = asyncio.ensure_future(box.stop_confirmed())
    await asyncio.sleep(0)
    box.force()
    await stopping
    await running


# ---------------------------------------------------------------------- at exit


@pytest.mark.parametrize("known", [True, False])
async def test_the_end_at_exit_is_by_id_or_else_by_name(double, box, known):
    claim: Any = box._box.handle.claim
    if not known:
        claim.ids.clear()
    await asyncio.to_thread(box.cleanup)
    assert box.state is State.GONE
    assert "TERMINATED" in box.proof
    assert double.live() == []


@pytest.mark.parametrize(
    ("op", "state"), [(DELETE, State.UNKNOWN), (GET, State.UNKNOWN)], ids=["delete", "read"]
)
async def test_an_end_at_exit_that_cannot_be_asked_for_is_unknown(double, box, op, state):
    double.faults.add(op, "status", status=403, times=-1)
    await asyncio.to_thread(box.cleanup)
    assert box.state is state
    assert not box.proof


async def test_an_end_at_exit_that_lingers_survived(double, box):
    double.faults.add("linger", "linger", seconds=1)
    await asyncio.to_thread(box.cleanup)
    assert box.state is State.SURVIVED
