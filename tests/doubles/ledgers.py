"""A ledger for tests, and what is noted in it."""

from __future__ import annotations

import time

from vf_core.runtimes.lifecycle import State, Transition
from vf_core.sandboxes.ledger import Ledger, Owner

OWNER = Owner.this_process("run-1", "/runs/1")


def starting(name: str = "box", kind: str = "docker", id: str = "") -> Transition:
    return Transition(name, kind, State.STARTING, time.time(), id)


def move(state: State, name: str = "box", **more: str) -> Transition:
    return Transition(name, "docker", state, time.time(), **more)


async def reserve(ledger: Ledger, name: str = "box", **more: str) -> None:
    await ledger.recorder(OWNER, rollout="0-0", attempt=1).reserve(starting(name, **more))
