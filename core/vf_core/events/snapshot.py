"""A run's state as JSON-able dicts, for a screen that attaches in the middle.

A state can be dumped in chunks while events go on changing it: whatever changed behind the dump's back is
dumped again, so that the loop that owns the state never stands still for long and the result is one instant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from vf_core.events.state import (
    AttemptView,
    CommandView,
    ProgramView,
    RolloutView,
    RunState,
    SandboxView,
    ServedView,
    ToolView,
    Totals,
)
from vf_core.runtimes.lifecycle import State

_Fields = tuple[tuple[str, Any], ...]


def _defaults(cls: type[Any], *skip: str) -> _Fields:
    return tuple(
        (f.name, f.default if f.default_factory is MISSING else f.default_factory())
        for f in fields(cls)
        if f.name not in skip
    )


_ROLLOUT = _defaults(RolloutView, "attempts", "sandbox", "program", "tools", "served", "phases", "errors")
_ATTEMPT = _defaults(AttemptView)
_PROGRAM = _defaults(ProgramView)
_TOOL = _defaults(ToolView)
_SERVED = _defaults(ServedView)
_SANDBOX = _defaults(SandboxView, "state", "history")
_COMMAND = _defaults(CommandView)
_TOTALS = _defaults(Totals)
_HEAD = _defaults(RunState, "totals", "rollouts", "sandboxes", "unconfirmed", "logs", "commands", "changed")


def _plain(value: Any, known: _Fields) -> dict[str, Any]:
    """The fields of `value` that differ from their defaults."""
    out: dict[str, Any] = {}
    for name, default in known:
        got = getattr(value, name)
        if got != default:
            out[name] = dict(got) if isinstance(got, dict) else got
    return out


def dump_rollout(r: RolloutView) -> dict[str, Any]:
    """One rollout, without its sandbox, of which only the name is kept."""
    out = _plain(r, _ROLLOUT)
    if r.attempts:
        out["attempts"] = [_plain(a, _ATTEMPT) for a in r.attempts]
    if r.tools:
        out["tools"] = [_plain(t, _TOOL) for t in r.tools]
    if r.served:
        out["served"] = {name: _plain(s, _SERVED) for name, s in r.served.items()}
    if r.phases:
        out["phases"] = list(r.phases)
    if r.errors:
        out["errors"] = list(r.errors)
    if r.program is not None:
        out["program"] = _plain(r.program, _PROGRAM)
    if r.sandbox is not None:
        out["sandbox"] = r.sandbox.name
    return out


def load_rollout(data: dict[str, Any], sandboxes: dict[str, SandboxView]) -> RolloutView:
    """The rollout that `dump_rollout` dumped. Its sandbox is looked up in `sandboxes`."""
    data = dict(data)
    attempts = [AttemptView(**a) for a in data.pop("attempts", ())]
    tools = deque(ToolView(**t) for t in data.pop("tools", ()))
    served = {
        name: ServedView(**s | {"tools": tuple(s.get("tools", ()))})
        for name, s in data.pop("served", {}).items()
    }
    phases = [(name, t) for name, t in data.pop("phases", ())]
    errors = [(t, kind, message) for t, kind, message in data.pop("errors", ())]
    program = ProgramView(**data.pop("program")) if "program" in data else None
    sandbox = sandboxes.get(data.pop("sandbox", ""))
    return RolloutView(
        **data,
        attempts=attempts,
        tools=tools,
        served=served,
        phases=phases,
        errors=errors,
        program=program,
        sandbox=sandbox,
    )


def _dump_sandbox(box: SandboxView) -> dict[str, Any]:
    out = _plain(box, _SANDBOX)
    out["state"] = box.state.value
    out["history"] = [(state.value, t, text) for state, t, text in box.history]
    return out


def _load_sandbox(data: dict[str, Any]) -> SandboxView:
    data = dict(data)
    history = [(State(state), t, text) for state, t, text in data.pop("history")]
    return SandboxView(**data | {"state": State(data["state"])}, history=history)


def _load_command(data: dict[str, Any]) -> CommandView:
    data = dict(data)
    for name in ("targets", "changed"):
        data[name] = tuple(data.get(name, ()))
    return CommandView(**data)


class Dumping:
    """A dump in the making. `chunk` until it gives None, then `finish`, in which nothing may come between.

    Every part is a dict for `Loading`; together they are the state as of the call of `finish`.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._rollouts: dict[str, int] = {}
        self._waiting = iter(list(state.rollouts))
        self._again = 3

    def chunk(self, size: int = 200) -> dict[str, Any] | None:
        """The next `size` rollouts; None when so few are left that `finish` can take them."""
        ids = [id for id, _ in zip(self._waiting, range(size), strict=False)]
        if not ids and self._again:
            self._again -= 1
            behind = list(self._behind())
            if len(behind) > size:
                self._waiting = iter(behind[size:])
                ids = behind[:size]
        return self._part(ids) if ids else None

    def finish(self) -> dict[str, Any]:
        """The rest, and everything that is about the run as a whole."""
        state = self._state
        part = self._part(list(self._behind()))
        known = {box["name"] for box in part["sandboxes"]}
        # A sandbox is dumped with its rollout; one whose rollout is unknown has nobody else to bring it.
        part["sandboxes"] += [
            _dump_sandbox(box)
            for box in state.sandboxes.values()
            if box.rollout not in state.rollouts and box.name not in known
        ]
        part["head"] = _plain(state, _HEAD)
        part["totals"] = _plain(state.totals, _TOTALS)
        part["unconfirmed"] = sorted(state.unconfirmed)
        part["logs"] = list(state.logs)
        part["commands"] = [_plain(c, _COMMAND) for c in state.commands]
        part["order"] = None if self._in_order() else list(state.rollouts)
        return part

    def _behind(self) -> Iterator[str]:
        done = self._rollouts
        for id, rollout in self._state.rollouts.items():
            if done.get(id) != rollout.revision:
                yield id

    def _in_order(self) -> bool:
        return list(self._rollouts) == list(self._state.rollouts)

    def _part(self, ids: list[str]) -> dict[str, Any]:
        rollouts, boxes = [], []
        for id in ids:
            rollout = self._state.rollouts[id]
            self._rollouts[id] = rollout.revision
            rollouts.append(dump_rollout(rollout))
            boxes += [_dump_sandbox(self._state.sandboxes[name]) for name in rollout.sandboxes]
        return {"rollouts": rollouts, "sandboxes": boxes}


class Loading:
    """Puts a dump's parts together again."""

    def __init__(self) -> None:
        self._rollouts: dict[str, RolloutView] = {}
        self._sandboxes: dict[str, SandboxView] = {}

    def add(self, part: dict[str, Any]) -> None:
        """Take in a part; a rollout that came before is replaced."""
        for data in part["sandboxes"]:
            self._take(_load_sandbox(data))
        for data in part["rollouts"]:
            rollout = load_rollout(data, self._sandboxes)
            self._rollouts[rollout.id] = rollout

    def _take(self, box: SandboxView) -> None:
        known = self._sandboxes.setdefault(box.name, box)
        if known is not box:
            # Rollouts hold on to the object.
            for name in SandboxView.__slots__:
                setattr(known, name, getattr(box, name))

    def finish(self, part: dict[str, Any]) -> RunState:
        """Take in the last part and give the state. Every rollout counts as changed."""
        self.add(part)
        order = part["order"]
        rollouts = self._rollouts if order is None else {id: self._rollouts[id] for id in order}
        state = RunState(
            **part["head"],
            totals=Totals(**part["totals"]),
            rollouts=rollouts,
            sandboxes=self._sandboxes,
            unconfirmed=set(part["unconfirmed"]),
            changed=set(rollouts),
        )
        state.logs.extend((t, level, message, rollout) for t, level, message, rollout in part["logs"])
        state.commands.extend(_load_command(data) for data in part["commands"])
        return state


def dump(state: RunState) -> dict[str, Any]:
    """The whole of `state` as one JSON-able dict (tuples become lists in JSON; `load` takes both)."""
    return Dumping(state).finish()


def load(data: dict[str, Any]) -> RunState:
    """The state that `dump` dumped: equal to it, except that every rollout counts as changed."""
    return Loading().finish(data)
