"""The backstop for sandboxes whose event loop is gone: at interpreter exit each is ended, synchronously."""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from vf_core.errors import SandboxError
from vf_core.runtimes.box import CUT_SHORT, NEVER_ASKED, Answer, Box, say
from vf_core.runtimes.lifecycle import State

if TYPE_CHECKING:
    from vf_core.runtimes.machine import Machine

log = logging.getLogger(__name__)

CLEANUP_TIMEOUT = 30.0
_CLEANERS = 32

# What exists is held until it is proven gone, so that a dropped reference cannot lose it.
_UNSETTLED: set[Machine[Any]] = set()
_armed = False


def hold(machine: Machine[Any]) -> None:
    """It is about to have a sandbox: at interpreter exit that is ended, unless proven gone before."""
    global _armed  # noqa: PLW0603 - one hook for the process
    _UNSETTLED.add(machine)
    if not _armed:
        _armed = True
        atexit.register(cleanup_all)


def let_go(machine: Machine[Any]) -> None:
    """Forget it when nothing of it is left."""
    if machine.state.settled and not machine.left:
        _UNSETTLED.discard(machine)


def cleanup_all() -> None:
    """End, synchronously, every sandbox that this process started and has not proven gone."""
    clean_up(list(_UNSETTLED))


def clean_up(machines: list[Machine[Any]], patience: float = CLEANUP_TIMEOUT) -> None:
    """End the machines' sandboxes, side by side where a provider must be asked, and within `patience` seconds."""
    boxes = [(machine, box) for machine in machines for box in (machine._box, *machine._left)]
    boxes = [(machine, box) for machine, box in boxes if not box.state.settled]
    answers: dict[int, Answer | Exception | None] = {}
    todo: deque[tuple[Machine[Any], Box[Any]]] = deque()
    for machine, box in boxes:
        _leave(box)
        if machine.cleanup_asks and box.asked:
            todo.append((machine, box))
        else:
            answers[id(box)] = _clean(machine, box)

    def work() -> None:
        while todo:
            with contextlib.suppress(IndexError):
                machine, box = todo.popleft()
                answers[id(box)] = _clean(machine, box)

    # Daemons: one that hangs must not keep the interpreter.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(len(todo), _CLEANERS))]
    deadline = time.monotonic() + patience
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for _, box in boxes:
        _conclude(box, answers.get(id(box), TimeoutError("no answer in time, at exit")))
    for machine in machines:
        let_go(machine)


def _leave(box: Box[Any]) -> None:
    if box.state is State.CHECKING:
        box.life.to(State.UNKNOWN, detail=CUT_SHORT)
    if box.state is not State.STOPPING:
        box.life.to(State.STOPPING, detail="at exit")


def _clean(machine: Machine[Any], box: Box[Any]) -> Answer | Exception | None:
    try:
        return machine._cleanup(box) if box.asked else Answer(True, NEVER_ASKED)
    except (SandboxError, OSError) as e:
        log.warning("sandbox %s could not be ended at exit: %s", box.name, e)
        return e
    except Exception as e:
        log.exception("sandbox %s could not be ended at exit", box.name)
        return e


def _conclude(box: Box[Any], answer: Answer | Exception | None) -> None:
    life = box.life
    if isinstance(answer, Exception):
        life.to(State.UNKNOWN, detail=say(answer))
        return
    life.to(State.SENT)
    if answer is not None:
        life.to(State.CHECKING)
        if answer.gone:
            life.to(State.GONE, proof=answer.text)
        else:
            life.to(State.SURVIVED, detail=answer.text)
