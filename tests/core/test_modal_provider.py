"""What the inventory and cleanup ask Modal, and what the double itself promises its tests."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys

import pytest
from grpclib import Status

from doubles.modal import kit
from doubles.modal.server import ModalProcess
from doubles.modal.state import Result
from vf_core.errors import SandboxError
from vf_core.runtimes import make_provider
from vf_core.runtimes.labels import MARK
from vf_core.runtimes.modal import account
from vf_core.runtimes.modal.provider import ModalProvider


@pytest.fixture
def double(monkeypatch):
    yield from kit.serving(monkeypatch, page=3)


@pytest.fixture
async def provider(double):
    provider = make_provider("modal")
    assert isinstance(provider, ModalProvider)
    yield provider
    await provider.close()


async def made(count: int, **options):
    boxes = [kit.runtime(f"box-{n}", **options) for n in range(count)]
    await asyncio.gather(*(box.start() for box in boxes))
    return boxes


async def stopped(boxes):
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))


async def test_all_pages_are_listed_with_our_labels_and_nobody_elses(double, provider):
    boxes = await made(8)
    double.bystander(2)
    double.bystander(1, app="vf-tui", tags={"team": "other"})
    listed = {one.id: one for one in await provider.listed()}
    assert set(listed) == {box.sandbox_id for box in boxes}
    one = listed[boxes[3].sandbox_id]
    assert (one.name, one.alive, one.status) == ("box-3", True, "running")
    assert dict(one.labels) == kit.LABELS
    assert [found.id for found in await provider.find("box-3")] == [one.id]
    assert await provider.find("box-99") == []
    await stopped(boxes)
    assert await provider.listed() == []
    assert len(double.live()) == 3


async def test_no_app_is_nothing_and_none_is_made(double, provider):
    assert await provider.listed() == []
    assert await provider.find("x") == []
    assert double.world.apps == {}


async def test_a_long_name_is_found_by_itself(double, provider):
    name = "vf-" + "x" * 80
    box = kit.runtime(name)
    await box.start()
    assert [one.id for one in await provider.find(name)] == [box.sandbox_id]
    await box.stop_confirmed()


async def test_delete_and_probe(double, provider):
    (box,) = await made(1)
    assert not (await provider.probe(box.sandbox_id)).gone
    await provider.delete(box.sandbox_id)
    assert (await provider.probe(box.sandbox_id)).gone
    await provider.delete(box.sandbox_id)
    missing = f"sb-{999:026d}"
    await provider.delete(missing)
    assert (await provider.probe(missing)).text == f"Modal: there is no sandbox {missing}"
    await box.stop_confirmed()


@pytest.mark.parametrize(
    "status", [Status.UNAVAILABLE, Status.INTERNAL, Status.PERMISSION_DENIED, Status.UNAUTHENTICATED]
)
async def test_no_answer_is_an_error_and_never_an_empty_list(double, provider, monkeypatch, status):
    monkeypatch.setattr(account, "TRIES", 1)
    (box,) = await made(1)
    for op in ("^SandboxListV2$", "^SandboxTerminateV2$", "^SandboxWaitV2$"):
        double.faults.add(op, "status", status=status.value, times=-1, body={"message": "404 not found"})
    for call in (provider.listed(), provider.find("box-0"), provider.probe(box.sandbox_id)):
        with pytest.raises(SandboxError, match="Error"):
            await call
    double.faults.clear()
    double.faults.add("^SandboxTerminateV2$", "status", status=status.value, times=-1)
    with pytest.raises(SandboxError, match=box.sandbox_id):
        await provider.delete(box.sandbox_id)
    double.faults.clear()
    await box.stop_confirmed()


async def test_a_hang_has_an_end(double, provider, monkeypatch):
    monkeypatch.setattr(account, "TRIES", 1)
    monkeypatch.setattr(account, "CALL", 0.2)
    (box,) = await made(1)
    double.faults.add("^SandboxListV2$", "hang", seconds=600, times=-1)
    with pytest.raises(SandboxError, match="did not answer"):
        await asyncio.wait_for(provider.listed(), 60)
    double.faults.clear()
    await box.stop_confirmed()


async def test_one_whose_tags_cannot_be_read_is_listed_all_the_same(double, provider, monkeypatch):
    """R32: ours by the mark that was asked for; whose, is not known."""
    monkeypatch.setattr(account, "TRIES", 1)
    (box,) = await made(1)
    double.faults.add("^SandboxTagsGetV2$", "status", status=Status.PERMISSION_DENIED.value)
    (one,) = await provider.listed()
    assert (one.id, one.alive, dict(one.labels)) == (box.sandbox_id, True, {})
    assert "tags unknown" in one.status
    await box.stop_confirmed()


@pytest.mark.parametrize("status", [0, 99])
async def test_what_is_not_known_to_have_ended_is_alive(double, provider, status):
    """R32: none, and an unknown status; the exit code is 0 in both."""
    (box,) = await made(1)
    sandbox = double.world.sandboxes[box.sandbox_id]
    page = double.world.page

    def with_status(query, size):
        found = page(query, size)
        for one in found:
            one.result = Result(status=status, exitcode=0)
        return found

    double.world.page = with_status
    listing = asyncio.ensure_future(provider.listed())
    async with asyncio.timeout(60):
        while sandbox.result is None:
            await asyncio.sleep(0.01)
    (one,) = await listing
    assert one.alive
    assert not (await provider.probe(box.sandbox_id)).gone
    sandbox.result, double.world.page = None, page
    await box.stop_confirmed()


async def test_the_delete_command_deletes(double, provider):
    """What a dry run prints can be pasted into a shell."""
    (box,) = await made(1)
    command = provider.delete_command(box.sandbox_id)
    assert shlex.split(command)[:2] == ["python3", "-c"]
    env = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    await asyncio.to_thread(subprocess.run, ["sh", "-c", command], env=env, check=True, timeout=60)
    assert double.live() == []
    await box.stop_confirmed()


# ---------------------------------------------------------------------- the double as a process


async def test_a_double_that_outlives_its_engine(monkeypatch):
    """T04: what a killed engine left is found by our mark, and a bystander's is not touched."""
    program = (
        "import asyncio, os\n"
        "from doubles.modal import kit\n"
        "async def main():\n"
        "    boxes = [kit.runtime(f'box-{n}') for n in range(3)]\n"
        "    await asyncio.gather(*(box.start() for box in boxes))\n"
        "    await boxes[0].run_background(['sleep', '600'])\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    with ModalProcess() as double:
        for name, value in double.env.items():
            monkeypatch.setenv(name, value)
        kit.forget_client()
        double.ask("bystander", count=2)
        env = {**os.environ, "PYTHONPATH": "tests"}
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", program], env=env, timeout=60, check=False
        )
        assert done.returncode == -9
        assert len(double.live()) == 5
        provider = make_provider("modal")
        found = await provider.listed()
        assert sorted(one.name for one in found) == ["box-0", "box-1", "box-2"]
        await asyncio.gather(*(provider.delete(one.id) for one in found))
        assert all([(await provider.probe(one.id)).gone for one in found])
        assert [one["tags"].get(MARK) for one in double.live()] == [None, None]
        double.ask("fault", op="SandboxListV2", action="status", status=Status.INTERNAL.value, times=1)
        assert await provider.listed() == []
        assert double.ask("count", op="SandboxListV2") >= 3
    kit.forget_client()
