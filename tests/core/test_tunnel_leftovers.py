"""Registrations of tunnels that nobody could delete: listed with whose they are, and ended by cleanup (case T04)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from doubles import tunnel_holder
from doubles.tunnel_service import KEY, TunnelService, install_frpc, tunnel_service
from vf_core.errors import SandboxError
from vf_core.runtimes.leftover_tunnels import TunnelProvider
from vf_core.sandboxes import cleanup, inventory
from vf_core.sandboxes.ledger import Ledger
from vf_core.sandboxes.owners import Owner


@pytest.fixture
async def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TunnelService]:
    for name in [name for name in os.environ if name.startswith("PRIME_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PRIME_API_KEY", KEY)
    install_frpc(tmp_path)
    async with tunnel_service() as service:
        monkeypatch.setenv("PRIME_API_BASE_URL", service.url)
        yield service


async def taken(ledger: Ledger) -> inventory.Inventory:
    return await inventory.take(ledger, ["tunnel"], makers={"tunnel": TunnelProvider})


async def leave_one(service: TunnelService) -> None:
    """Kill an engine and what holds its tunnel, both without a word."""
    import asyncio

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, tunnel_holder.__file__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    assert process.stdout is not None
    os.kill(int(await process.stdout.readline()), signal.SIGKILL)
    process.kill()
    await process.wait()
    assert service.alive


async def test_t04_what_a_killed_engine_left_is_found_and_ended(
    service: TunnelService, tmp_path: Path
) -> None:
    await leave_one(service)
    live = await service.register(Owner.this_process("mine").labels())
    far = await service.register({**Owner.this_process("theirs").labels(), "host": "elsewhere", "boot": "b"})
    service.tunnels[live].body["name"] = "vf-tui-mine"
    bystander = await service.register(None)
    ledger = Ledger.open(tmp_path / "sandboxes.db")
    try:
        found = await taken(ledger)
        assert len(found.items) == 3  # over two pages; the bystander's has no label of ours
        (left,) = [item for item in found.items if item.leftover]
        assert (left.kind, left.run, left.owner) == ("tunnel", "run-1", "dead")
        assert left.command == f"prime tunnel stop {left.id}"
        assert {item.owner for item in found.items} == {"dead", "live", "elsewhere"}
        outcomes = await cleanup.clean(ledger, found.items, makers={"tunnel": TunnelProvider})
        assert {o.state for o in outcomes if o.item.id == left.id} == {"GONE"}
        assert {t.id for t in service.alive} == {live, far, bystander}
    finally:
        ledger.close()


async def test_a_service_that_cannot_be_asked_is_unknown(service: TunnelService, tmp_path: Path) -> None:
    owner = await service.register(Owner.this_process("mine").labels())
    provider = TunnelProvider()
    service.delete_fault = 403
    with pytest.raises(SandboxError, match=rf"tunnel {owner} cannot be deleted.*no"):
        await provider.delete(owner)
    assert not (await provider.probe(owner)).gone
    service.delete_fault = 0
    await provider.delete(owner)
    await provider.delete(owner)
    answer = await provider.probe(owner)
    assert answer.gone
    assert "404" in answer.text
    await provider.close()


async def test_whoever_has_no_login_is_told(service: TunnelService, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TunnelProvider()
    assert KEY not in provider.account
    monkeypatch.setenv("PRIME_API_KEY", "another")
    with pytest.raises(SandboxError, match=r"API key unauthorized.*prime login"):
        await TunnelProvider().listed()
    monkeypatch.delenv("PRIME_API_KEY")
    with pytest.raises(SandboxError, match="no Prime login"):
        TunnelProvider()
    modules: dict[str, Any] = dict(sys.modules)
    for name in [name for name in modules if name.startswith("prime_tunnel.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prime_tunnel", None)
    with pytest.raises(SandboxError, match=r"vf-tui\[tunnel\]"):
        TunnelProvider()
