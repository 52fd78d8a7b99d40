"""What the Modal runtime makes of a provider that fails: nothing is forgotten, and nothing is gone without proof."""

from __future__ import annotations

import asyncio

import pytest
from grpclib import Status

from doubles.modal import kit
from doubles.modal.state import Result
from vf_core.errors import SandboxError, SandboxUnconfirmedError
from vf_core.runtimes.box import Box
from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.modal import account
from vf_core.runtimes.modal.runtime import ModalRuntime

CREATE, TERMINATE, WAIT = "^SandboxCreateV2$", "^SandboxTerminateV2$", "^SandboxWaitV2$"


@pytest.fixture
def double(monkeypatch):
    yield from kit.serving(monkeypatch)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Deadlines that a test can wait for."""
    monkeypatch.setattr(ModalRuntime, "create_deadline", 0.7)
    monkeypatch.setattr(ModalRuntime, "late_deadline", 0.3)
    monkeypatch.setattr(ModalRuntime, "doubt_period", 0.3)
    monkeypatch.setattr(account, "TERMINATE", 0.6)
    monkeypatch.setattr(account, "CALL", 1.0)
    monkeypatch.setattr(account, "TRIES", 2)


def fail(double, op, status: Status, times=-1, seconds=0.0):
    double.faults.add(op, "status", status=status.value, times=times, seconds=seconds)


def made(double) -> int:
    return len(double.world.sandboxes)


# ---------------------------------------------------------------------- creation


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_create_answer_that_was_lost(double, idempotent):
    """The SDK asks again: it gets its own sandbox back, by key, or else by name and tags."""
    double.world.idempotent = idempotent
    double.faults.add(CREATE, "reset_after")
    box = kit.runtime()
    await box.start()
    assert (await box.run(["echo", "up"])).stdout == "up\n"
    assert made(double) == 1
    await box.stop_confirmed()
    assert double.live() == []


async def test_a_name_that_somebody_else_has_is_not_taken_over(double):
    """The same name in our app, but other tags: another run's."""
    other = kit.runtime("same", ours={**kit.LABELS, "run": "run-2"})
    await other.start()
    box = kit.runtime("same")
    with pytest.raises(SandboxError, match="AlreadyExistsError"):
        await box.start()
    assert box.state is State.FAILED
    await box.stop_confirmed()
    assert "refused" in box.proof
    assert [one["id"] for one in double.live()] == [other.sandbox_id]
    await other.stop_confirmed()


@pytest.mark.parametrize("action", ["hang_after", "hang"])
async def test_a_create_call_without_an_answer(double, action):
    """It may have been made: it is looked for by its tags, ended, and only then said to be gone."""
    double.faults.add(CREATE, action, seconds=3)
    box = kit.runtime()
    with pytest.raises(SandboxError, match="did not say in time"):
        await box.start()
    assert box.state is State.FAILED
    await box.stop_confirmed()
    assert box.state is State.GONE
    assert double.live() == []
    assert made(double) == (action == "hang_after")
    if made(double):
        assert box.sandbox_id


async def test_one_that_is_made_after_its_create_call_was_given_up(double, monkeypatch):
    """Nothing is claimed while it may still appear, and when it does it is ended."""
    monkeypatch.setattr(ModalRuntime, "doubt_period", 60.0)
    double.faults.add(CREATE, "later", seconds=2.0, times=1)
    box = kit.runtime()
    with pytest.raises(SandboxError, match="did not say in time"):
        await box.start()
    with pytest.raises(SandboxUnconfirmedError, match="may still be making it"):
        await box.stop_confirmed(timeout=0.4)
    assert (box.state, made(double)) == (State.SURVIVED, 0)
    await box.stop_confirmed()
    assert box.state is State.GONE
    assert box.sandbox_id in box.proof
    assert made(double) == 1
    assert double.live() == []


@pytest.mark.parametrize("moment", [0.0, 0.2])
async def test_a_create_call_that_is_cancelled_leaves_nothing(double, moment):
    """R01: committed at once, answered late, cancelled in between; four at a time."""
    double.faults.add(CREATE, "hang_after", seconds=5, times=4)
    boxes = [kit.runtime(f"box-{n}") for n in range(4)]
    starts = [asyncio.ensure_future(box.start()) for box in boxes]
    async with asyncio.timeout(60):
        while double.faults.count(CREATE) < (4 if moment else 1):
            await asyncio.sleep(0.01)
    await asyncio.sleep(moment)
    for start in starts:
        start.cancel()
    await asyncio.gather(*starts, return_exceptions=True)
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))
    assert {box.state for box in boxes} == {State.GONE}
    assert double.live() == []


async def test_a_create_answer_that_comes_after_the_stop(double, monkeypatch):
    """The stop waits for it, and ends what it brings."""
    monkeypatch.setattr(ModalRuntime, "create_deadline", 20.0)
    monkeypatch.setattr(ModalRuntime, "late_deadline", 10.0)
    double.faults.add(CREATE, "hang", seconds=0.7)
    box = kit.runtime()
    start = asyncio.ensure_future(box.start())
    async with asyncio.timeout(60):
        while not double.faults.count(CREATE):
            await asyncio.sleep(0.01)
    await box.stop_confirmed()
    with pytest.raises(SandboxError):
        await start
    assert box.state is State.GONE
    assert box.sandbox_id
    assert double.live() == []


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status.PERMISSION_DENIED, "PermissionDeniedError"),
        (Status.INVALID_ARGUMENT, "InvalidError"),
        (Status.UNAUTHENTICATED, "modal token new"),
    ],
)
async def test_a_refused_create_is_told_and_its_refusal_is_the_proof(double, status, words):
    """R29: no second try, Modal's own words."""
    fail(double, CREATE, status)
    box = kit.runtime()
    with pytest.raises(SandboxError, match=words):
        await box.start()
    assert double.faults.count(CREATE) == 1
    fail(double, "^SandboxListV2$", status)
    await box.stop_confirmed()
    assert box.state is State.GONE
    assert "refused" in box.proof


@pytest.mark.parametrize("status", [Status.INTERNAL, Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED])
async def test_a_create_that_fails_for_good(double, status):
    fail(double, CREATE, status)
    box = kit.runtime()
    with pytest.raises(SandboxError, match="did not"):
        await box.start()
    double.faults.clear()
    await box.stop_confirmed()
    assert "there is no sandbox named" in box.proof


async def test_a_throttle_that_never_ends_has_an_end_here(double):
    """The SDK would wait for ever at the pace that it is told."""
    fail(double, CREATE, Status.RESOURCE_EXHAUSTED, seconds=0.2)
    box = kit.runtime()
    with pytest.raises(SandboxError, match="did not say in time"):
        await asyncio.wait_for(box.start(), 60)
    await box.stop_confirmed()
    assert double.live() == []


async def test_a_short_throttle_heals(double):
    fail(double, CREATE, Status.RESOURCE_EXHAUSTED, times=2, seconds=0.1)
    box = kit.runtime()
    await box.start()
    await box.stop_confirmed()


async def test_an_image_that_cannot_be_built_asks_for_no_sandbox(double):
    box = kit.runtime(image="no-such-image:1")
    with pytest.raises(SandboxError, match="no-such-image:1"):
        await box.start()
    await box.stop_confirmed()
    assert "never asked" in box.proof
    assert double.faults.count(CREATE) == 0


async def test_a_sandbox_that_never_boots_is_ended_by_a_stop(double):
    double.world.boot = 3600
    box = kit.runtime()
    start = asyncio.ensure_future(box.start())
    async with asyncio.timeout(60):
        while not box.sandbox_id:
            await asyncio.sleep(0.01)
    await box.stop_confirmed()
    with pytest.raises(SandboxError):
        await start
    assert double.live() == []


async def test_an_app_that_was_deleted_is_made_again(double, box):
    """One failure tells; the next start works."""
    double.faults.add(CREATE, "status", status=Status.NOT_FOUND.value)
    double.world.apps.clear()
    other = kit.runtime("other")
    with pytest.raises(SandboxError, match="NotFoundError"):
        await other.start()
    await other.stop_confirmed()
    assert double.world.apps == {}
    await other.start()
    assert len(double.world.apps) == 1
    await other.stop_confirmed()
    await box.stop_confirmed()


async def test_a_slow_boot_is_waited_for(double):
    double.world.boot = 0.7
    box = kit.runtime()
    await box.start()
    await box.stop_confirmed()


async def test_a_workdir_that_cannot_be_made(double):
    box = kit.runtime(workdir="/proc/nowhere")
    with pytest.raises(SandboxError, match="/proc/nowhere"):
        await box.start()
    await box.stop_confirmed()
    assert double.live() == []


# ---------------------------------------------------------------------- the end


@pytest.fixture
async def box(double):
    box = kit.runtime()
    await box.start()
    return box


async def test_the_proof_is_modals_own_answer(double, box):
    await box.stop_confirmed()
    assert box.proof == f"Modal: {box.sandbox_id} ended (terminated, code 137)"
    calls = double.faults.count(".")
    await box.stop_confirmed()
    await box.stop()
    assert double.faults.count(".") == calls


async def test_what_is_already_gone_is_gone(double, box):
    """T07: ended meanwhile, or unknown to Modal."""
    double.expire(box.sandbox_id)
    await box.stop_confirmed()
    assert "lifetime" in box.proof


async def test_not_found_is_known_by_its_type(double, box):
    """T07."""
    fail(double, TERMINATE, Status.NOT_FOUND)
    await box.stop_confirmed()
    assert box.proof == f"Modal: there is no sandbox {box.sandbox_id}"


@pytest.mark.parametrize("op", [TERMINATE, WAIT])
@pytest.mark.parametrize("status", [Status.PERMISSION_DENIED, Status.UNAUTHENTICATED, Status.INTERNAL])
async def test_a_message_that_says_not_found_proves_nothing(double, box, op, status):
    """T07: 401, 403 and 500 are visible failures, whatever they say; the stop may be asked again."""
    said = {"message": "404: NOT_FOUND: Sandbox not found"}
    double.faults.add(op, "status", status=status.value, times=-1, body=said)
    with pytest.raises(SandboxUnconfirmedError, match=rf"{box.sandbox_id}.*Sandbox not found"):
        await box.stop_confirmed()
    assert box.state is State.UNKNOWN
    assert not box.proof
    double.faults.clear()
    await box.stop_confirmed()
    assert double.live() == []


@pytest.mark.parametrize("op", [TERMINATE, WAIT])
@pytest.mark.parametrize("status", [Status.INTERNAL, Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED])
async def test_an_outage_is_unknown_and_retryable(double, box, op, status):
    fail(double, op, status)
    with pytest.raises(SandboxUnconfirmedError):
        await box.stop_confirmed(timeout=20)
    assert box.state is State.UNKNOWN
    double.faults.clear()
    await box.stop_confirmed()
    assert box.state is State.GONE
    assert double.live() == []


@pytest.mark.parametrize("op", [TERMINATE, WAIT])
@pytest.mark.parametrize("action", ["reset_before", "reset_after", "hang", "hang_after"])
async def test_a_passing_failure_heals_by_itself(double, box, op, action):
    double.faults.add(op, action, seconds=2)
    await box.stop_confirmed()
    assert box.state is State.GONE
    assert double.live() == []


async def test_internal_errors_are_tried_again_here(double, box, monkeypatch):
    """More of them than the SDK tries by itself."""
    monkeypatch.setattr(account, "TERMINATE", 10.0)
    fail(double, TERMINATE, Status.INTERNAL, times=5)
    await box.stop_confirmed()
    assert double.live() == []


@pytest.mark.parametrize("op", [TERMINATE, WAIT])
async def test_a_hang_ends_at_the_deadline_as_unknown(double, box, op):
    """T08."""
    double.faults.add(op, "hang", seconds=600, times=-1)
    with pytest.raises(SandboxUnconfirmedError):
        await asyncio.wait_for(box.stop_confirmed(timeout=1), 60)
    assert box.state is State.UNKNOWN
    double.faults.clear()
    await box.stop_confirmed()
    assert double.live() == []


async def test_one_that_lingers_is_checked_until_it_is_gone(double, box):
    double.faults.add("linger", "linger", seconds=0.5)
    await box.stop_confirmed()
    assert box.state is State.GONE
    assert double.live() == []


async def test_one_that_lingers_past_the_deadline_survived(double, box):
    """Accepted is not gone."""
    double.faults.add("linger", "linger", seconds=3600)
    with pytest.raises(SandboxUnconfirmedError):
        await box.stop_confirmed(timeout=1)
    assert box.state is State.SURVIVED
    assert not box.proof
    await box.stop_confirmed()
    assert double.live() == []


async def test_a_status_that_nobody_knows_is_no_end(double, box):
    """R32: an unknown status, with the exit code 0 that messages have by default."""
    double.expire(box.sandbox_id, 99)
    with pytest.raises(SandboxUnconfirmedError):
        await box.stop_confirmed(timeout=1)
    assert box.state is State.SURVIVED
    double.world.sandboxes[box.sandbox_id].result.status = Result.GENERIC_STATUS_TERMINATED
    await box.stop_confirmed()


async def test_a_handle_without_an_id_is_terminated_by_handle(double, monkeypatch):
    """Creation fails between the answer and the note of its id."""

    def fails(box, id):
        raise RuntimeError("the id could not be noted")

    box = kit.runtime()
    with monkeypatch.context() as patch:
        patch.setattr(Box, "identify", fails)
        with pytest.raises(SandboxError, match="could not be noted"):
            await box.start()
    assert box.sandbox_id == ""
    assert len(double.live()) == 1
    await box.stop_confirmed()
    assert box.state is State.GONE
    assert "terminated" in box.proof
    assert double.live() == []
    assert double.faults.count("^SandboxListV2$") == 0


async def test_an_id_that_could_not_be_reported_is_kept(double):
    box = kit.runtime()
    told = []

    def observer(move):
        if move.id and not told:
            told.append(move)
            raise RuntimeError("the observer is broken")

    box._observer = observer
    await box.start()
    await box.stop_confirmed()
    assert told
    assert box.sandbox_id
    assert double.live() == []


async def test_a_restart_has_nothing_of_the_old_one(double, box):
    """T17, contracts 4."""
    first, handle = box.sandbox_id, box._box.handle
    await box.stop_confirmed()
    await box.start()
    assert box.sandbox_id != first
    assert box._box.handle is not handle
    assert box.state is State.LIVE
    assert not box.proof
    assert [one["id"] for one in double.live()] == [box.sandbox_id]
    await box.stop_confirmed()
    assert double.live() == []


async def test_a_forced_start_beside_one_that_survives(double, box):
    """The new one has a name of its own; the old one stays in view."""
    first = box.sandbox_id
    double.faults.add("linger", "linger", seconds=3600, times=-1)
    with pytest.raises(SandboxUnconfirmedError):
        await box.stop_confirmed(timeout=0.5)
    await box.start(force=True)
    assert len(double.live()) == 2
    assert len(box.left) == 1
    double.faults.clear()
    double.expire(first, Result.GENERIC_STATUS_TERMINATED)
    await box.stop_confirmed()
    await box.confirm_left()
    assert box.left == ()
    assert double.live() == []


async def test_never_started_asks_nobody(double):
    await kit.runtime().stop_confirmed()
    assert double.faults.count(".") == 0


# ---------------------------------------------------------------------- the other generation


async def test_a_gpu_sandbox_of_the_first_generation(double):
    """Modal makes those another way: other calls, ids of another shape, the same promises."""
    box = kit.runtime("gpu", gpu="T4:2")
    await box.start()
    assert len(box.sandbox_id) == len("sb-") + 22
    definition = double.world.sandboxes[box.sandbox_id].definition
    assert (definition.resources.gpu_config.gpu_type, definition.resources.gpu_config.count) == ("T4", 2)
    await box.write("file", b"data")
    assert (await box.run(["cat", "file"])).stdout == "data"
    await box.stop_confirmed()
    assert double.live() == []


async def test_a_gpu_sandbox_whose_create_answer_was_lost(double, monkeypatch):
    monkeypatch.setattr(ModalRuntime, "gpu_create_deadline", 0.7)
    double.faults.add("^SandboxCreate$", "hang_after", seconds=3)
    box = kit.runtime("gpu", gpu="T4")
    with pytest.raises(SandboxError, match="did not say in time"):
        await box.start()
    await box.stop_confirmed()
    assert box.sandbox_id
    assert double.live() == []


async def test_what_is_asked_for_is_what_the_config_says(double):
    box = kit.runtime(
        cpu=2.5,
        memory=1.5,
        timeout=120,
        idle_timeout=90,
        region="eu",
        network_access=True,
        expose_ports=[8000, 8001],
        labels={"team": "blue"},
    )
    await box.start()
    made = double.world.sandboxes[box.sandbox_id]
    asked = made.definition
    assert (asked.timeout_secs, asked.idle_timeout_secs) == (120, 90)
    assert (asked.resources.milli_cpu, asked.resources.memory_mb) == (2500, 1536)
    assert list(asked.scheduler_placement.regions) == ["eu"]
    assert [port.port for port in asked.open_ports.ports] == [8000, 8001]
    assert made.tags["team"] == "blue"
    assert made.tags["vf-tui.run"] == "run-1"
    assert made.tags["vf-tui"] == "1"
    await box.stop_confirmed()
