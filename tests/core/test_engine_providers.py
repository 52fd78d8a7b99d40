"""Whole runs on every kind of sandbox: what is written down and when, and what becomes of a provider's faults."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from grpclib import Status

from doubles.engine_boxes import left
from doubles.engine_host import need_engine
from doubles.engine_images import python_image
from doubles.engine_kit import Kit, engine_kit, script_config
from doubles.engine_proxy import EngineProxy, says, status
from doubles.modal import kit as modal
from doubles.prime import kit as prime
from vf_core.events import types as ev
from vf_core.events.state import ENDED
from vf_core.rollout import attempt
from vf_core.runtimes import at_exit
from vf_core.runtimes.docker import client as docker_client
from vf_core.runtimes.identity import boot_id
from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.machine import Machine
from vf_core.runtimes.modal import account as at_modal
from vf_core.runtimes.prime.runtime import PrimeRuntime
from vf_core.runtimes.subprocess import SubprocessRuntime
from vf_core.sandboxes.cleanup import clean
from vf_core.sandboxes.inventory import take
from vf_core.sandboxes.ledger import Ledger
from vf_core.sandboxes.rows import Row

CREATE, DELETE, INSPECT = (
    r"^POST .*/containers/create",
    r"^DELETE .*/containers/",
    r"^GET .*/containers/[^/]+/json",
)


class Place:
    """A provider. `on_create` has a function called whenever a create call arrives, before anything is made."""

    kind = "subprocess"
    image: dict[str, Any] = {}

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch

    def on_create(self, look: Callable[[], None]) -> None:
        original = SubprocessRuntime._create

        async def create(runtime: SubprocessRuntime, box: Any) -> None:
            look()
            await original(runtime, box)

        self.patch.setattr(SubprocessRuntime, "_create", create)

    def live(self) -> int:
        raise AssertionError("the subclass asks its provider")

    def spoil(self, fault: str) -> None:
        """From now on an end goes wrong this way."""
        raise AssertionError("the subclass knows its faults")

    def calm(self) -> None: ...


class AtPrime(Place):
    kind = "prime"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, double: Any) -> None:
        super().__init__(monkeypatch)
        self.double = double
        monkeypatch.setattr(PrimeRuntime, "pace", prime.QUICK)
        monkeypatch.setattr(PrimeRuntime, "probe_delays", (0.05, 0.1))

    def on_create(self, look: Callable[[], None]) -> None:
        original = self.double.state.add

        def add(*args: Any) -> Any:
            look()
            return original(*args)

        self.patch.setattr(self.double.state, "add", add)

    def live(self) -> int:
        return len(self.double.live())

    def spoil(self, fault: str) -> None:
        delete, get = prime.OPERATIONS["delete"], prime.OPERATIONS["get"]
        faults: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
            "401": [(delete, "status", {"status": 401})],
            "403": [(delete, "status", {"status": 403})],
            "500": [(delete, "status", {"status": 500})],
            "look fails": [(get, "status", {"status": 500})],
            "says 404": [
                (op, "status", {"status": 403, "body": {"detail": "HTTP 404: not found"}})
                for op in (delete, get)
            ],
            "404 of one that lives": [(delete, "status", {"status": 404})],
            "hang": [(delete, "hang", {"seconds": 60})],
            "look hangs": [(get, "hang", {"seconds": 60})],
            "reset": [(delete, "reset_before", {})],
            "linger": [("linger", "linger", {"seconds": 3600})],
        }
        for op, action, details in faults[fault]:
            self.double.faults.add(op, action, times=-1, **details)

    def calm(self) -> None:
        self.double.faults.clear()
        for sandbox in self.double.state.sandboxes.values():
            sandbox.gone_at = sandbox.gone_at and 0.0


class AtModal(Place):
    kind = "modal"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, double: Any) -> None:
        super().__init__(monkeypatch)
        self.double = double
        for name, value in (("TERMINATE", 0.5), ("CALL", 1.0), ("TRIES", 2)):
            monkeypatch.setattr(at_modal, name, value)

    def on_create(self, look: Callable[[], None]) -> None:
        original = self.double.world.make

        async def make(*args: Any, **options: Any) -> Any:
            look()
            return await original(*args, **options)

        self.patch.setattr(self.double.world, "make", make)

    def live(self) -> int:
        return len(self.double.live())

    def spoil(self, fault: str) -> None:
        end, look = "^SandboxTerminateV2$", "^SandboxWaitV2$"
        faults: dict[str, tuple[str, str, Status | None]] = {
            "401": (end, "status", Status.UNAUTHENTICATED),
            "403": (end, "status", Status.PERMISSION_DENIED),
            "500": (end, "status", Status.INTERNAL),
            "look fails": (look, "status", Status.INTERNAL),
            "hang": (end, "hang", None),
            "look hangs": (look, "hang", None),
            "reset": (end, "reset_before", None),
            "linger": ("linger", "linger", None),
        }
        op, action, code = faults[fault]
        details = {"status": code.value} if code else {"seconds": 3600.0}
        self.double.faults.add(op, action, times=-1, **details)

    def calm(self) -> None:
        self.double.faults.clear()


class AtDocker(Place):
    kind = "docker"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, proxy: EngineProxy) -> None:
        super().__init__(monkeypatch)
        self.proxy, self.run = proxy, ""
        self.image = {"image": python_image(), "pull": "never"}
        monkeypatch.setattr(docker_client, "_REMOVE_PAUSES", (0.01,))
        monkeypatch.setattr(docker_client, "REMOVE", 0.3)

    def on_create(self, look: Callable[[], None]) -> None:
        async def seen(exchange: Any) -> None:
            look()
            await exchange.join(*await exchange.ask())

        self.proxy.on(CREATE, seen)

    def live(self) -> int:
        return len(left(self.run))

    def spoil(self, fault: str) -> None:
        faults = {
            "403": (DELETE, status(403, "no such container")),
            "look fails": (INSPECT, status(500)),
            "says 404": (INSPECT, status(403, "No such container: 404")),
            "linger": (DELETE, says(b"", 204)),
        }
        self.proxy.on(*faults[fault])

    def calm(self) -> None:
        self.proxy.clear()


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if request.param == "prime":
        for double in prime.serving(monkeypatch, tmp_path, boot_polls=0):
            yield AtPrime(monkeypatch, double)
    elif request.param == "modal":
        for other in modal.serving(monkeypatch):
            yield AtModal(monkeypatch, other)
    elif request.param == "docker":
        need_engine()
        with EngineProxy() as proxy:
            monkeypatch.setenv("DOCKER_HOST", proxy.url)
            yield AtDocker(monkeypatch, proxy)
    else:
        yield Place(monkeypatch)
    # Their providers are gone with the test: nobody is left to be asked when the interpreter ends.
    at_exit._UNSETTLED.clear()


def config_of(place: Place, tmp_path: Path, scripts: list[str], **settings: Any) -> Any:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    if place.kind in ("prime", "modal"):
        tunnel = {"type": "custom", "url": f"http://tunnel.test:{port}", "port": port, "host": "127.0.0.1"}
        settings["env__interception__tunnel"] = {**tunnel, "check": False}
        place.image = {"workdir": str(tmp_path / "app"), "price": 0.5}
    runtime = {"type": place.kind, **place.image}
    return script_config(tmp_path / "runs", scripts, env__agent__runtime=runtime, **settings)


def rows(run: str = "") -> list[Row]:
    ledger = Ledger.open()
    try:
        return ledger.rows(run=run) if run else ledger.rows()
    finally:
        ledger.close()


@pytest.mark.parametrize("place", ["subprocess", "docker", "prime", "modal"], indirect=True)
async def test_a_row_is_on_disk_before_the_provider_is_asked(place: Place, tmp_path: Path) -> None:
    """With all that is needed to find the sandbox when its answer is lost; its id, states and proof follow."""
    seen: list[list[Row]] = []
    place.on_create(lambda: seen.append(rows()))
    async with engine_kit(config_of(place, tmp_path, ["exec sleep 600"])) as (kit, _):
        await kit.running()
        box = kit.rollout().sandbox
        assert box is not None
        ((row,),) = seen
        assert (row.kind, row.name, row.state, row.rollout, row.attempt) == (
            place.kind,
            box.name,
            State.STARTING,
            "0000-0",
            1,
        )
        assert not row.proof
        assert row.account
        assert row.price == (0.5 if place.kind in ("prime", "modal") else None)
        owner = row.owner
        assert (owner.run, owner.run_dir) == (kit.run_dir.run_id, str(kit.run_dir.path))
        assert (owner.host, owner.boot, owner.pid) == (socket.gethostname(), boot_id(), os.getpid())
        assert owner.start
        await kit.until(lambda: box.state is State.LIVE)
        assert await kit.engine.command("confirm_stop", ("0000-0",), {}, "test")
    (row,) = rows(kit.run_dir.run_id)
    assert (row.state, row.id) == (State.GONE, box.id)
    assert row.id
    assert row.proof


FAULTS = {
    "401": State.UNKNOWN,
    "403": State.UNKNOWN,
    "500": State.UNKNOWN,
    "look fails": State.UNKNOWN,
    "says 404": State.UNKNOWN,
    "404 of one that lives": State.SURVIVED,
    "hang": State.UNKNOWN,
    "look hangs": State.UNKNOWN,
    "reset": State.UNKNOWN,
    "linger": State.SURVIVED,
}
NOTHING_DONE = {"401", "403", "500", "404 of one that lives", "hang", "reset"}
NOT_FOR = {
    "docker": {"401", "500", "404 of one that lives", "hang", "look hangs", "reset"},
    "modal": {"says 404", "404 of one that lives"},
}
CASES = [
    (kind, fault)
    for kind in ("docker", "prime", "modal")
    for fault in FAULTS
    if fault not in NOT_FOR.get(kind, ())
]


@pytest.mark.parametrize(("place", "fault"), CASES, indirect=["place"])
async def test_no_fault_of_an_end_is_ever_gone(
    place: Place, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word, the row, the exit code; and what is left is found and ended once the provider is well again."""
    monkeypatch.setattr(attempt, "_STOP_PATIENCE", 0.3)
    monkeypatch.setattr(Machine, "stop_confirmed", partialmethod(Machine.stop_confirmed, timeout=0.7))
    async with engine_kit(config_of(place, tmp_path, ["exec sleep 600"])) as (kit, run):
        if isinstance(place, AtDocker):
            place.run = kit.run_dir.run_id
        await kit.running()
        box = kit.rollout().sandbox
        assert box is not None
        await kit.until(lambda: box.state is State.LIVE)
        place.spoil(fault)
        reply = await kit.engine.command("confirm_stop", ("0000-0",), {}, "test")
        assert not reply.ok
        assert f"is {FAULTS[fault].word}" in reply.message
        assert await asyncio.wait_for(run, 30) == 4
    assert box.state is FAULTS[fault]
    assert {state for state, *_ in box.history}.isdisjoint({"gone"})
    assert kit.state.unconfirmed == {box.name}
    (finished,) = kit.of(ev.RunFinished)
    assert (finished.exit_code, finished.unconfirmed) == (4, (box.name,))
    (row,) = rows(kit.run_dir.run_id)
    assert (row.state, row.id, row.proof) == (FAULTS[fault], box.id, "")
    if fault in NOTHING_DONE:
        assert place.live() == 1
    place.calm()
    if fault == "linger" and isinstance(place, AtModal):
        place.double.expire(box.id)
    ledger = Ledger.open()
    found = await take(ledger, [place.kind])
    mine = [item for item in found.items if item.run == kit.run_dir.run_id and item.word != "GONE"]
    outcomes = await clean(ledger, mine)
    await ledger.aclose()
    assert {outcome.state for outcome in outcomes} <= {"GONE"}
    (row,) = rows(kit.run_dir.run_id)
    assert (row.state, bool(row.proof)) == (State.GONE, True)
    assert place.live() == 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("place", ["prime", "modal"], indirect=True)
async def test_t15_racing_commands_on_a_remote_provider(place: Place, tmp_path: Path, seed: int) -> None:
    """Create and delete calls are slow, some answers are lost: still at most one sandbox a rollout, and none left."""
    rng = random.Random(seed)
    create = prime.OPERATIONS["create"] if place.kind == "prime" else "^SandboxCreateV2$"
    delete = prime.OPERATIONS["delete"] if place.kind == "prime" else "^SandboxTerminateV2$"
    place.double.faults.add(create, "reset_after", times=2)
    place.double.faults.add(create, "hang", seconds=0.1, times=4)
    place.double.faults.add(delete, "reset_after", times=2)
    last: dict[str, str] = {}
    most = 0

    async with engine_kit(config_of(place, tmp_path, ["exec sleep 600"] * 2)) as (kit, run):
        kit.engine.viewers(1)

        def watch(event: ev.Event) -> None:
            nonlocal most
            if isinstance(event, ev.RuntimeChanged):
                names = [
                    b.name
                    for b in kit.state.sandboxes.values()
                    if b.rollout == event.rollout and not b.state.settled
                ]
                most = max(most, len(names))

        kit.engine.bus.add_sink(watch)
        pending = []
        for _ in range(12):
            id = f"000{rng.randrange(2)}-0"
            last[id] = rng.choice(["stop", "confirm_stop", "restart", "restart"])
            pending.append(asyncio.create_task(kit.engine.command(last[id], (id,), {}, "test")))
            await asyncio.sleep(rng.choice([0, 0.01, 0.2]))
        await asyncio.gather(*pending)
        for id, command in last.items():
            if command == "restart":
                await kit.until(lambda id=id: kit.rollout(id).status == "active")  # type: ignore[misc]
            else:
                assert kit.rollout(id).status in ENDED
        await kit.engine.command("shutdown", (), {}, "test")
        await asyncio.wait_for(run, 60)
    assert most == 1
    assert kit.state.unconfirmed == set()
    assert place.live() == 0
    assert {row.state for row in rows(kit.run_dir.run_id)} == {State.GONE}
    assert_one_trace_each(kit)


def assert_one_trace_each(kit: Kit) -> None:
    seen = [(r["info"]["vf_tui"]["rollout"], r["info"]["vf_tui"]["attempt"]) for r in kit.records()]
    assert len(seen) == len(set(seen))
