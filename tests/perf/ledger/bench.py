"""What the ledger costs: a row before each sandbox and its moves until it is gone, inventory and cleanup of 500.

python tests/perf/ledger/bench.py [--sandboxes N]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from doubles.fake_provider import FakeProvider, Shelf, dead_owner
from vf_core.runtimes.lifecycle import Lifecycle, State, Transition
from vf_core.sandboxes.cleanup import clean
from vf_core.sandboxes.inventory import take
from vf_core.sandboxes.ledger import Ledger, Owner


@contextmanager
def measured(what: str, count: int) -> Iterator[None]:
    """Print the time and the processor time of a block, for each of `count`."""
    began, cpu = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(f"{what}: {cpu / count * 1e3:.3f} ms CPU each, {wall * 1e3:.0f} ms for all {count}")


async def lives(ledger: Ledger, owner: Owner, kind: str, count: int) -> None:
    """`count` sandboxes at once, each from its row to its proof."""

    async def one(n: int) -> None:
        recorder = ledger.recorder(owner, rollout=f"{n}-0", attempt=1, account="acme")
        life = Lifecycle(f"box-{kind}-{n}", kind, recorder.note)
        life.to(State.STARTING)
        await recorder.reserve(Transition(life.sandbox, kind, State.STARTING, time.time()))
        life.identify(f"id-{n}")
        life.to(State.LIVE)
        await asyncio.sleep(0.05)
        for state in (State.STOPPING, State.SENT, State.CHECKING):
            life.to(state)
        life.to(State.GONE, proof="acme: no such sandbox (404)")

    with measured(f"row and eight moves, {kind}", count):
        await asyncio.gather(*(one(n) for n in range(count)))
        ledger.flush()


async def leftovers(ledger: Ledger, count: int) -> None:
    """Inventory and cleanup of a dead engine's sandboxes, of a provider that answers at once."""
    owner, shelf = dead_owner(), Shelf()

    async def one(n: int) -> None:
        recorder = ledger.recorder(owner, rollout="0-0", attempt=1, account="acme")
        await recorder.reserve(Transition(f"name-i{n}", "fake", State.STARTING, time.time()))
        recorder.note(Transition(f"name-i{n}", "fake", State.LIVE, time.time(), f"i{n}"))
        shelf.put(f"i{n}", owner)

    await asyncio.gather(*(one(n) for n in range(count)))
    makers = {"fake": lambda: FakeProvider(shelf)}
    with measured("inventory", count):
        inventory = await take(ledger, makers=makers)
    with measured("cleanup", count):
        outcomes = await clean(ledger, inventory.leftovers, makers=makers)
    assert [outcome.state for outcome in outcomes] == ["GONE"] * count


async def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        ledger = Ledger.open(Path(place) / "state" / "sandboxes.db")
        owner = Owner.this_process("bench")
        for kind in ("subprocess", "docker"):
            await lives(ledger, owner, kind, count)
        await leftovers(ledger, count)
        ledger.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sandboxes", type=int, default=500)
    asyncio.run(main(parser.parse_args().sandboxes))
