"""Screens by name. Each is imported and made when it is first looked at, so that the first one comes up fast."""

from __future__ import annotations

from vf_tui.actions import CLEANUP, EVENTS, FOCUS, RUN, SANDBOXES
from vf_tui.screens.base import BaseScreen


def make_screen(name: str) -> BaseScreen:
    """A new screen for the scope `name`."""
    if name == RUN:
        from vf_tui.screens.run import RunScreen

        return RunScreen()
    if name == FOCUS:
        from vf_tui.screens.focus import FocusScreen

        return FocusScreen()
    if name == SANDBOXES:
        from vf_tui.screens.sandboxes import SandboxesScreen

        return SandboxesScreen()
    if name == CLEANUP:
        from vf_tui.screens.cleanup import CleanupScreen

        return CleanupScreen()
    if name == EVENTS:
        from vf_tui.screens.events import EventsScreen

        return EventsScreen()
    from vf_tui.screens.runs import RunsScreen

    return RunsScreen()
