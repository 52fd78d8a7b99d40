"""Runs whose sandboxes are on other machines: refused without a way in, and told what a cut way cost."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from doubles import faraway
from doubles import upstream as up
from doubles.engine_kit import Kit, engine_kit, run_whole, script_config
from doubles.relay import Relay
from doubles.upstream import Provider
from vf_core.engine.plan import make_plan
from vf_core.errors import ConfigError
from vf_core.eval_config import EvalConfig
from vf_core.events import types as ev
from vf_core.interception import reach
from vf_core.interception.tunnel import Pace

# One model call, as an agent would; its failure is the program's.
ASK = """python3 - <<'END'
import json, os, urllib.request as u
u.install_opener(u.build_opener(u.ProxyHandler({})))
body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "tools": [{"type": "web_search"}]}
head = {"Authorization": "Bearer " + os.environ["SECRET"], "Content-Type": "application/json"}
print(u.urlopen(u.Request(os.environ["URL"] + "/chat/completions", json.dumps(body).encode(), head)).status)
END"""


@pytest.fixture
async def relay(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Relay]:
    """A way in, and the runtime that needs it."""
    faraway.install(monkeypatch)
    monkeypatch.setattr(reach, "PACE", Pace(check=3.0, one=1.0, pause=0.02, watch=0.1, wait=0.2))
    with socket.create_server(("127.0.0.1", 0)) as found:
        target = found.getsockname()[1]
    async with Relay(target) as relay:
        yield relay


def config(
    relay: Relay | None, out: Path, *scripts: str, kind: str = "faraway", **settings: Any
) -> EvalConfig:
    if relay is not None:
        tunnel = {"type": "custom", "url": relay.url, "port": relay.target, "host": "127.0.0.1"}
        settings.setdefault("env__interception__tunnel", tunnel)
    return script_config(out, scripts, env__agent__runtime={"type": kind}, **settings)


def logs(kit: Kit, level: str) -> str:
    return "\n".join(e.message for e in kit.of(ev.Log) if e.level == level)


def test_a_remote_runtime_without_a_way_in_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faraway.install(monkeypatch)
    with pytest.raises(ConfigError) as e:
        make_plan(config(None, tmp_path, "true"))
    assert e.value.key == "env.interception.tunnel"
    assert "faraway sandboxes run on other machines" in str(e.value)
    assert 'type = "custom"' in str(e.value)
    assert 'type = "prime"' in str(e.value)
    monkeypatch.delenv("PRIME_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for way in ({"type": "elastic"}, {"tunnel": {"type": "prime"}}):
        with pytest.raises(ConfigError, match="Prime login"):
            make_plan(config(None, tmp_path, "true", env__interception=way))


def test_a_sandbox_without_network_is_doubted(tmp_path: Path, relay: Relay) -> None:
    plan = make_plan(config(relay, tmp_path, "true", env__agent__runtime__network_access=False))
    assert any("network_access = false" in warning for warning in plan.warnings)
    assert not make_plan(config(relay, tmp_path, "true")).warnings


def test_a_provider_that_cannot_be_asked_is_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "line\nbreak")
    with pytest.raises(ConfigError, match="line break"):
        make_plan(script_config(tmp_path, ["true"]))


async def test_a_local_runtime_opens_no_tunnel(tmp_path: Path, relay: Relay) -> None:
    relay.kill()
    for kind in ("subprocess",):
        kit, code = await run_whole(
            config(relay, tmp_path, 'test "${URL#http://127.0.0.1}" != "$URL"', kind=kind)
        )
        assert code == 0, logs(kit, "error")
        assert "tunnel" not in logs(kit, "info")


async def test_model_calls_come_by_the_tunnel(tmp_path: Path, relay: Relay) -> None:
    async with Provider() as provider:
        kit, code = await run_whole(config(relay, tmp_path, ASK, client__base_url=provider.base_url))
    assert code == 0
    assert relay.url in logs(kit, "info")
    (record,) = kit.records()
    assert len(record["calls"]) == 1
    assert "web_search" in str(provider.requests[0].body)


async def test_s07_a_sandbox_without_network_gets_no_hosted_tools(tmp_path: Path, relay: Relay) -> None:
    async with Provider() as provider:
        settings = {"client__base_url": provider.base_url, "env__agent__runtime__network_access": False}
        kit, code = await run_whole(config(relay, tmp_path, ASK, **settings))
    assert code == 0
    assert "web_search" not in str(provider.requests[0].body)
    assert "web_search" in logs(kit, "warning")


async def test_a_tunnel_that_does_not_open_ends_the_run_before_anything_is_created(
    tmp_path: Path, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "PACE", Pace(check=0.3, one=0.2, pause=0.02))
    relay.kill()
    kit, code = await run_whole(config(relay, tmp_path, "true", num_rollouts=3))
    assert code == 5
    assert not kit.of(ev.RuntimeChanged)
    assert kit.state.status == "failed"
    (end,) = kit.of(ev.RunFinished)
    assert "does not lead to the interception server" in end.message
    assert "have it forward to port" in end.message
    assert {e.outcome for e in kit.of(ev.AttemptFinished)} == {"stopped"}
    assert len(kit.of(ev.AttemptFinished)) == 3


async def test_a_run_that_is_ended_while_the_tunnel_opens_does_not_wait(
    tmp_path: Path, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "PACE", Pace(check=3600, one=0.2, pause=0.02))
    relay.kill()
    async with engine_kit(config(relay, tmp_path, "true")) as (kit, run):
        await kit.until(lambda: kit.of(ev.RolloutQueued))
        assert (await kit.engine.command("stop_all", (), {"confirm": True}, "test")).ok
        assert await asyncio.wait_for(run, 60) == 0
    assert not kit.of(ev.RuntimeChanged)


async def test_a_cut_is_what_rollouts_failed_of_and_the_next_ones_wait(tmp_path: Path, relay: Relay) -> None:
    async with Provider() as provider:
        provider.plan(up.gated(asyncio.Event(), up.answer()))
        settings = {"client__base_url": provider.base_url, "max_concurrent": 1}
        async with engine_kit(config(relay, tmp_path, ASK, ASK, **settings)) as (kit, run):
            kit.engine.viewers(1)  # the run stays when all rollouts have ended
            await kit.until(lambda: kit.of(ev.ModelCallStarted))
            relay.kill()
            await kit.until(lambda: "is cut" in logs(kit, "warning"))
            await kit.until(lambda: [e for e in kit.of(ev.AttemptFinished) if e.rollout == "0001-0"])
            await relay.start()
            await kit.until(lambda: "is back" in logs(kit, "info"))
            await kit.engine.command("restart", ["0001-0"], {}, "test")
            kit.engine.viewers(0)
            await run
    first, second = kit.records()[:2]
    for record in (first, second):
        (error,) = record["errors"]
        assert error["type"] == "TunnelError"
        assert "is cut" in error["message"]
    assert "harness" in first["errors"][0]["message"]
    assert first["calls"][0]["error"]["type"] == "TunnelError"
    assert kit.of(ev.AttemptFinished)[-1].outcome == "completed"


async def test_an_outage_that_the_agent_got_over_is_not_what_it_failed_of(
    tmp_path: Path, relay: Relay
) -> None:
    """It asked again afterwards, and failed of something else."""
    asks = f"{ASK}\nuntil [ -e {tmp_path}/back ]; do sleep 0.02; done\n{ASK}\nexit 7"
    async with (
        Provider() as provider,
        engine_kit(config(relay, tmp_path, asks, client__base_url=provider.base_url)) as (kit, run),
    ):
        await kit.until(lambda: kit.of(ev.ModelCallFinished))
        relay.kill()
        await kit.until(lambda: "is cut" in logs(kit, "warning"))
        await relay.start()
        await kit.until(lambda: "is back" in logs(kit, "info"))
        (tmp_path / "back").touch()
        await run
    (record,) = kit.records()
    assert len(record["calls"]) == 2
    assert [error["type"] for error in record["errors"]] == ["HarnessError"]
    assert "exit 7" in record["errors"][0]["message"]


async def test_a_dead_tunnel_does_not_burn_all_rollouts(tmp_path: Path, relay: Relay) -> None:
    """Launching pauses after a few, and goes on at once when the tunnel is back."""
    settings = {"max_concurrent": 1, "num_rollouts": 12}
    script = f"touch {tmp_path}/begun; until [ -e {tmp_path}/go ]; do sleep 0.02; done"
    async with engine_kit(config(relay, tmp_path, script, **settings)) as (kit, run):
        kit.engine.viewers(1)
        await kit.until(lambda: kit.of(ev.ProgramStarted))
        relay.kill()
        await kit.until(lambda: "is cut" in logs(kit, "warning"))
        (tmp_path / "go").touch()
        await kit.until(lambda: kit.state.paused)
        assert "the tunnel failed 5 times in a row" in logs(kit, "error")
        await relay.start()
        await kit.until(lambda: not kit.state.paused)
        kit.engine.viewers(0)
        assert await asyncio.wait_for(run, 60) == 3
    outcomes = [e.outcome for e in kit.of(ev.AttemptFinished)]
    assert outcomes.count("error") == 5
    assert outcomes.count("completed") == 7
