"""What keys do to the run: every act that stops or starts something asks first, then goes through the link."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from vf_core.events.command import Reply
from vf_core.events.state import RolloutView
from vf_tui import requests
from vf_tui.actions import needs_force
from vf_tui.requests import Kind, Request
from vf_tui.screens.confirm import CONFIRM, ConfirmScreen, Dialog

if TYPE_CHECKING:
    from vf_tui.app import VfTuiApp

DETACH, STOP_RUN, STAY = "detach", "stop", "stay"


class Acting:
    """Carries out the actions of the registry that act on the run."""

    def __init__(self, app: VfTuiApp) -> None:
        self._app = app

    # -- acts on rollouts

    def do_rollout_stop(self) -> None:
        """Stop gracefully."""
        self._ask(requests.STOP)

    def do_rollout_confirm_stop(self) -> None:
        """Stop, and wait for proof."""
        self._ask(requests.CONFIRM_STOP)

    def do_rollout_kill(self) -> None:
        """Cut a grace period short."""
        self._ask(requests.KILL)

    def do_rollout_restart(self) -> None:
        """A new attempt once the old sandbox is gone; beside it only when forced."""
        targets = self._app.base.targets()
        self._ask(requests.RESTART, option=requests.FORCE if any(map(needs_force, targets)) else None)

    def do_run_retry_failed(self) -> None:
        """A new attempt of each that failed."""
        self._ask(requests.RETRY_FAILED, self._app.state.rollouts.values())

    def do_run_stop(self) -> None:
        """Stop everything."""
        self.stop_run()

    def stop_run(self, kind: Kind = requests.STOP_RUN, then: Callable[[], None] | None = None) -> None:
        """Ask whether to stop the run; `then` is called once that was confirmed and sent."""
        state = self._app.state
        run = state.name or state.run
        request = requests.ask(kind, state.rollouts.values(), state, option=requests.PROOF, run=run)
        self._confirm(request, then)

    def do_run_pause(self) -> None:
        """Launch nothing more, or launch again; not when the key was part of a burst."""
        name = "unpause" if self._app.state.paused else "pause"
        self._app.when_alone(lambda: self._send(name, (), {}))

    def _ask(
        self, kind: Kind, rollouts: Iterable[RolloutView] | None = None, option: requests.Option | None = None
    ) -> None:
        chosen = self._app.base.targets() if rollouts is None else rollouts
        request = requests.ask(kind, chosen, self._app.state, hidden=self._app.hidden, option=option)
        if request.targets:
            self._confirm(request)

    def _confirm(self, request: Request, then: Callable[[], None] | None = None) -> None:
        screen = ConfirmScreen(request, self._app.state)

        def answered(answer: str | None) -> None:
            if answer == CONFIRM and screen.final is not None:
                self._send_request(screen.final)
                if then is not None:
                    then()

        self._app.push_screen(screen, answered)

    def _send_request(self, request: Request) -> None:
        kind = request.kind
        # Stopping the run is a command on the run; all others name their rollouts.
        targets = () if kind.whole_run else tuple(request.targets)
        self._send(kind.command, targets, request.args)

    def _send(self, name: str, targets: tuple[str, ...], args: dict[str, object]) -> None:
        self._app.busy[name] = self._app.busy.get(name, 0) + 1
        whom = f" {len(targets)} rollouts" if len(targets) > 1 else f" {targets[0]}" if targets else ""
        self._app.base.say(f"{name.replace('_', ' ')}{whom}: asked", seconds=None)
        self._app.run_worker(self._command(name, targets, args), group="commands")

    async def _command(self, name: str, targets: tuple[str, ...], args: dict[str, object]) -> None:
        bridge = self._app.bridge
        reply = await bridge.command(name, targets, **args) if bridge else Reply(False, "no run is open")
        self._app.busy[name] -= 1
        if not self._app.busy[name]:
            del self._app.busy[name]
        self._app.base.say(answer_text(name, targets, reply), "info" if reply.ok else "error")
        self._app.wake()

    # -- leaving

    def do_app_quit(self) -> None:
        """Leave. A run of this process ends with it, so that is asked first."""
        app = self._app
        if app.embedded and app.is_live:
            self._ask_embedded()
        else:
            app.leave()

    def do_app_interrupt(self) -> None:
        """ctrl+c never stops a run silently."""
        app = self._app
        if not app.is_live:
            app.leave()
        elif app.embedded:
            self._ask_embedded()
        else:
            answers = [(DETACH, "Detach", "d"), (STOP_RUN, "Stop the run…", "s"), (STAY, "Cancel", "n")]
            text = [f"Detach leaves the run going; come back with `{app.come_back}`."]
            app.push_screen(_Leaving("The run is going on", answers, text=text), self._left)

    def _ask_embedded(self) -> None:
        if self._app.leaving:
            answers = [(STAY, "Wait", "n"), (DETACH, "Leave now", "y")]
            text = [
                "The run is being torn down. Leaving now hands the rest to the command line, which waits for it."
            ]
            self._app.push_screen(Dialog("Still cleaning up", answers, text=text), self._left)
            return
        self.stop_run(requests.LEAVE, then=self._app.leave_when_over)

    def _left(self, answer: str | None) -> None:
        app = self._app
        if answer == DETACH:
            app.leave()
        elif answer == STOP_RUN:
            self.stop_run()


class _Leaving(Dialog):
    """The dialog of ctrl+c: the focused answer detaches, but escape, `n` and ctrl+c mean Cancel."""

    CANCELS = 2


def answer_text(name: str, targets: tuple[str, ...], reply: Reply) -> str:
    """An engine's reply for the notice line."""
    what = name.replace("_", " ")
    if len(targets) == 1:
        what = f"{what} {targets[0]}"
    if not reply.ok:
        return f"{what} failed: {reply.message or 'the engine gave no reason'}"
    if reply.message:
        return f"{what}: {reply.message}" if not reply.message.startswith(name) else reply.message
    if not reply.changed:
        return f"{what}: nothing to do"
    if len(reply.changed) == len(targets) or not targets or reply.changed == ("run",):
        return f"{what}: done" if len(targets) < 2 else f"{what}: done for all {len(targets)}"
    return f"{what}: done for {len(reply.changed)} of {len(targets)}, nothing to do for the others"
