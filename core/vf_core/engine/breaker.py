"""Holds launching back while a provider is down, instead of burning every rollout on it.

After `limit` failures in a row the circuit opens: launching pauses, with the reason. One attempt at a time then tries
whether the provider is back, at growing distances; the first success closes the circuit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

LIMIT = 5
FIRST_PAUSE = 30.0
LONGEST_PAUSE = 600.0


@dataclass(slots=True)
class Circuit:
    """One provider's. `ever`: it has worked in this run. `pause`: seconds until the next trial; 0 while closed.
    `exhausted`: even the trials at the longest distance failed."""

    what: str
    limit: int = LIMIT
    failures: int = 0
    ever: bool = False
    pause: float = 0.0
    why: str = ""
    exhausted: bool = False

    @property
    def open(self) -> bool:
        """Launching is held back."""
        return self.pause > 0

    @property
    def reason(self) -> str:
        """What a screen says of an open circuit."""
        return f"{self.what} failed {self.failures} times in a row: {self.why}"


@dataclass(slots=True)
class Breaker:
    """The circuits of a run's providers. `changed` is called when one opens, fails a trial, or closes again."""

    changed: Callable[[Circuit], None]
    circuits: dict[str, Circuit] = field(default_factory=dict)

    def failed(self, what: str, why: str, *, trial: bool = False) -> None:
        """`what` could not be used. While its circuit is open only a trial's failure means anything: what was under
        way before is bound to fail, too."""
        circuit = self.circuits.setdefault(what, Circuit(what))
        circuit.failures += 1
        circuit.why = why
        if circuit.failures < circuit.limit or (circuit.open and not trial):
            return
        circuit.exhausted = circuit.pause >= LONGEST_PAUSE
        circuit.pause = min(max(FIRST_PAUSE, circuit.pause * 2), LONGEST_PAUSE)
        self.changed(circuit)

    def worked(self, what: str) -> None:
        """`what` was used well."""
        circuit = self.circuits.setdefault(what, Circuit(what))
        circuit.ever, circuit.failures, circuit.exhausted = True, 0, False
        if circuit.open:
            circuit.pause = 0.0
            self.changed(circuit)

    def reset(self) -> None:
        """The user says go: count anew, silently."""
        for circuit in self.circuits.values():
            circuit.failures, circuit.pause, circuit.exhausted = 0, 0.0, False

    def open(self) -> list[Circuit]:
        """Those that hold launching back, the one to wait longest for first."""
        return sorted((c for c in self.circuits.values() if c.open), key=lambda c: -c.pause)
