"""What inventory and cleanup ask Prime: lists, names, ends, and how each failure reads."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.routing import Route

from doubles.prime import kit
from doubles.prime.control import API
from doubles.prime.kit import LABELS, OPERATIONS, runtime
from doubles.prime.server import PrimeDouble
from vf_core.errors import SandboxError
from vf_core.runtimes import labels, make_provider
from vf_core.runtimes.lifecycle import State
from vf_core.runtimes.prime import client as clients
from vf_core.runtimes.prime.provider import PrimeProvider

OURS = labels.encode_list(LABELS)


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PrimeDouble]:
    yield from kit.serving(monkeypatch, tmp_path)


@pytest.fixture
async def provider(double: PrimeDouble) -> AsyncIterator[PrimeProvider]:
    provider = make_provider("prime")
    assert isinstance(provider, PrimeProvider)
    provider._client = clients.acquire(kit.QUICK)
    yield provider
    await provider.close()
    await provider.close()


def made(double: PrimeDouble, count: int, texts: list[str] = OURS) -> list[str]:
    return [double.bystander(f"vf-{n}", texts) for n in range(count)]


async def test_all_pages_are_read(double, provider):
    ids = await asyncio.to_thread(made, double, 230)
    await asyncio.to_thread(made, double, 5, ["somebody-else"])
    listed = await provider.listed()
    assert [row.id for row in listed] == ids
    assert dict(listed[0].labels) == LABELS
    assert (listed[0].name, listed[0].status, listed[0].alive, listed[0].image) == (
        "vf-0",
        "RUNNING",
        True,
        "",
    )
    assert listed[0].created is not None
    assert listed[0].ends == listed[0].created + 3600


async def test_pages_that_shift_hide_nothing(double, provider):
    """What ends while the list is read moves the others to pages that were read already."""
    ids = await asyncio.to_thread(made, double, 250)
    read = double._control.page

    async def page(request):
        answer = await read(request)
        if request.query_params["page"] == "1":
            for id in ids[:60]:
                double.state.sandboxes[id].row["status"] = "TERMINATED"
        return answer

    double._app.router.routes = [
        Route(API + "/sandbox", page, methods=["GET"]),
        *double._app.router.routes,
    ]
    assert set(ids[60:]) <= {row.id for row in await provider.listed()}


async def test_a_404_of_something_else_is_no_proof(double, provider, monkeypatch):
    """A proxy's page, or a server that is not Prime."""
    with pytest.raises(SandboxError, match="cannot be looked at"):
        await provider.probe("no/such/path")
    with pytest.raises(SandboxError, match="cannot be deleted"):
        await provider.delete("no/such/path")


async def test_a_provider_that_takes_any_label_does_not_give_us_others(double, provider):
    double.options.any_label = True
    ids = await asyncio.to_thread(made, double, 3)
    await asyncio.to_thread(made, double, 3, ["vf-tui-not"])
    assert [row.id for row in await provider.listed()] == ids


async def test_what_has_ended_is_left_out_and_what_is_unknown_is_alive(double, provider):
    """R32."""
    ids = await asyncio.to_thread(made, double, 4)
    for id, status in zip(ids, ["TERMINATED", "PAUSED", "NEW_WORD", ""], strict=True):
        double.state.sandboxes[id].row["status"] = status
    listed = {row.id: row for row in await provider.listed()}
    assert set(listed) == set(ids[1:])
    assert all(row.alive for row in listed.values())
    assert not (await provider.probe(ids[3])).gone


async def test_a_row_that_is_not_understood_costs_no_other(double, provider):
    """R34."""
    ids = await asyncio.to_thread(made, double, 3)
    for key in ("name", "createdAt", "timeoutMinutes", "dockerImage"):
        double.state.sandboxes[ids[1]].row[key] = None
    listed = await provider.listed()
    assert [row.id for row in listed] == ids
    assert (listed[1].name, listed[1].created, listed[1].ends) == ("", None, None)


async def test_one_without_an_id_is_found_by_its_name(double, provider):
    ids = await asyncio.to_thread(made, double, 3)
    double.bystander("vf-1", ["somebody-else"])
    assert [row.id for row in await provider.find("vf-1")] == [ids[1]]
    assert await provider.find("vf-9") == []


async def test_ends_and_their_proof(double, provider):
    [id] = await asyncio.to_thread(made, double, 1)
    bystander = double.bystander()
    assert not (await provider.probe(id)).gone
    await provider.delete(id)
    await provider.delete(id)
    answer = await provider.probe(id)
    assert (answer.gone, answer.text) == (True, f"Prime says that {id} is TERMINATED")
    assert [one["id"] for one in double.live()] == [bystander]


async def test_one_that_never_was(provider):
    await provider.delete("nothing")
    answer = await provider.probe("nothing")
    assert answer.gone
    assert "404" in answer.text


@pytest.mark.parametrize("op", ["list", "get", "delete"])
async def test_a_provider_that_cannot_be_asked_says_so(double, provider, op):
    double.faults.add(OPERATIONS[op], "status", status=403, times=-1, body={"detail": "HTTP 404: not yours"})
    ask = {"list": provider.listed(), "get": provider.probe("x"), "delete": provider.delete("x")}
    for name, call in ask.items():
        if name != op:
            call.close()
    with pytest.raises(SandboxError, match=r"cannot be .*HTTP 403"):
        await ask[op]


async def test_a_list_that_breaks_off_is_no_list(double, provider):
    """A page that is missing must not read as: nothing there."""
    await asyncio.to_thread(made, double, 150)
    double.faults.add(OPERATIONS["list"], "late", seconds=0)
    double.faults.add(OPERATIONS["list"], "status", status=500, times=-1)
    with pytest.raises(SandboxError, match="500"):
        await provider.listed()


@pytest.mark.parametrize("body", [{"nothing": 1}, {"sandboxes": None}])
async def test_an_answer_without_a_list_is_none(double, provider, body):
    double.faults.add(OPERATIONS["list"], "status", status=200, body=body, times=-1)
    with pytest.raises(SandboxError, match="without sandboxes"):
        await provider.listed()


async def test_the_providers_own_command(provider):
    assert provider.delete_command("abc") == "prime sandbox delete --yes abc"
    assert provider.delete_command("a b;c") == "prime sandbox delete --yes 'a b;c'"


async def test_provider_and_runtime_name_the_same_account(provider):
    assert runtime().account == provider.account


async def test_a_team_is_asked_about_its_own(double, monkeypatch):
    await asyncio.to_thread(made, double, 2)
    monkeypatch.setenv("PRIME_TEAM_ID", "team-1")
    box = runtime()
    await box.start()
    provider = PrimeProvider()
    assert provider.account.startswith("team team-1 at ")
    assert [row.id for row in await provider.listed()] == [box.sandbox_id]
    await provider.close()
    await box.stop_confirmed()


async def test_a_connection_is_let_go_of(double, provider):
    await provider.listed()
    await provider.close()
    assert clients._clients.get(asyncio.get_running_loop()) == {}


async def test_a_proxy_is_honoured(double, monkeypatch):
    """The SDK's clients take the usual variables: a proxy that is not there is asked in vain."""
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    provider = PrimeProvider()
    with pytest.raises(SandboxError, match=r"no connection to 127\.0\.0\.1"):
        await provider.listed()
    await provider.close()


# ---------------------------------------------------------------------- many, and processes that end


async def test_many_are_stopped_together(double):
    """More at once than the SDK has connections."""
    patient = replace(kit.QUICK, call=60.0, create=60.0, boot=60.0, build=60.0)
    boxes = [runtime(f"many-{n}", pace=patient) for n in range(60)]
    await asyncio.gather(*(box.start() for box in boxes))
    assert len(double.live()) == 60
    running = [asyncio.ensure_future(box.run(["sleep", "600"])) for box in boxes[:20]]
    await asyncio.gather(*(box.stop_confirmed() for box in boxes))
    assert {box.state for box in boxes} == {State.GONE}
    assert double.live() == []
    assert {result.exit_code for result in await asyncio.gather(*running)} <= {137, 143}


CHILD = """
import asyncio, sys
from vf_core.runtimes import make_runtime, runtime_config_class
from vf_core.runtimes.lifecycle import State

class Tell:
    async def reserve(self, move): pass
    def note(self, move): print(move.sandbox, move.state.value, move.proof or move.detail, flush=True)

boxes = []
async def main():
    for n in range(5):
        config = runtime_config_class("prime")()
        boxes.append(make_runtime(config, name=f"vf-{n}", labels={"run": "r"}, recorder=Tell()))
    await asyncio.gather(*(box.start() for box in boxes))
    print("up", flush=True)
    if "wait" in sys.argv:
        await asyncio.sleep(600)
asyncio.run(main())
"""


def child(double: kit.PrimeProcess, home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **double.env, "HOME": str(home), "XDG_STATE_HOME": str(home)},
    )


def test_what_a_process_leaves_is_ended_at_its_exit(tmp_path):
    with kit.process() as double:
        bystander = double.ask("bystander")
        out, _ = child(double, tmp_path).communicate(timeout=60)
        assert [one["id"] for one in double.ask("live")] == [bystander]
        assert double.ask("created") == 6
    assert out.count(" gone Prime says that ") == 5


def test_an_end_at_exit_that_is_refused_is_told_as_unknown(tmp_path):
    with kit.process() as double:
        process = child(double, tmp_path, "wait")
        assert process.stdout
        while process.stdout.readline() != "up\n":
            pass
        double.ask("fault", op=f"{OPERATIONS['delete']}.", action="status", status=500, times=-1)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        assert out.count(" unknown HTTP 500") == 5
        assert len(double.ask("live")) == 5


def test_the_double_outlives_its_user_who_is_killed(tmp_path):
    """T04."""
    with kit.process() as double:
        process = child(double, tmp_path, "wait")
        assert process.stdout
        while process.stdout.readline() != "up\n":
            pass
        process.kill()
        process.communicate()
        left = double.ask("live")
        assert len(left) == 5
        assert all("vf-tui.run=r" in one["labels"] for one in left)
