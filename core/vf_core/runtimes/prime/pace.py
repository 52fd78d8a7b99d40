"""How long the provider is given for what. All in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """The SDK has no deadline for anything; these are ours.

    `call`: one question. `create`: the answer to a create call; `create_grace`: how much longer a stop waits for it.
    `settle`: a create call that was cut off may still make a sandbox for so long; only then does its absence from
    the list prove anything. `delete`: one request; `delete_delays`: waits between such requests.
    `boot`, `build`: from the create call's answer to a sandbox that takes commands, without and with an image build.
    `poll`: a question for output is answered within this, `margin`: and an exchange is given up so much later.
    `liveness`: a sandbox that does not answer for so long, after it failed to once, is lost.
    `gap`: between two questions for output. `grace`: between TERM and KILL.
    """

    call: float = 30.0
    create: float = 150.0
    create_grace: float = 10.0
    settle: float = 30.0
    delete: float = 15.0
    delete_delays: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 4.0)
    boot: float = 600.0
    build: float = 3000.0
    boot_delays: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 10.0)
    poll: float = 20.0
    margin: float = 15.0
    liveness: float = 45.0
    retry_delays: tuple[float, ...] = (0.1, 0.3, 1.0, 2.0, 5.0)
    gap: float = 0.1
    grace: float = 2.0


PACE = Pace()
