"""Everything a user can do, said once: bindings, palette, help and key bar are all made of this list.

An action belongs to one or more scopes (the screens on which its keys work). `enabled` answers with the
reason why it can't be done now, as a phrase that follows "cannot <label>: ", or None.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from vf_core.events.state import RolloutView
from vf_core.runtimes.lifecycle import State

RUNS, RUN, FOCUS, SANDBOXES, EVENTS, CLEANUP = "runs", "run", "focus", "sandboxes", "events", "cleanup"
SCOPES = (RUNS, RUN, FOCUS, SANDBOXES, EVENTS, CLEANUP)
ALL = frozenset(SCOPES)
ON_RUN = frozenset({RUN, FOCUS})
LIVE_SCREENS = frozenset({RUN, FOCUS, SANDBOXES, EVENTS})
LISTS = frozenset({RUN, CLEANUP})


@dataclass(frozen=True, slots=True)
class Context:
    """What `enabled` may look at. `targets`: the marked rollouts, or else the one under the cursor.

    In the inventory of all sandboxes: `unmarkable` and `unclaimable` say why the one under the cursor is no leftover,
    or can't be claimed; `locked` is the user's read-only lock, `asking` and `ending` what is under way.
    """

    scope: str
    targets: tuple[RolloutView, ...] = ()
    has_run: bool = False
    over: bool = False
    lost: str = ""
    read_only: str = ""
    stopping: bool = False
    paused: bool = False
    busy: frozenset[str] = frozenset()
    standing: Collection[str] = ()
    failed: int = 0
    active: int = 0
    marks: int = 0
    shown: int = 0
    filtered: bool = False
    tab: str = ""
    locked: str = ""
    unmarkable: str = ""
    unclaimable: str = ""
    asking: bool = False
    ending: int = 0


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do. `dangerous`: it stops, restarts or pauses something; such keys are never remapped onto
    keys that fingers hit by habit. `bar`: place in the key bar, 0: not there."""

    id: str
    label: str
    keys: tuple[str, ...]
    scopes: frozenset[str]
    tip: str
    enabled: Callable[[Context], str | None] = field(default=lambda _: None)
    dangerous: bool = False
    bar: int = 0
    short: str = ""

    @property
    def name(self) -> str:
        """The label for the key bar."""
        return self.short or self.label


def _run_open(c: Context) -> str | None:
    return None if c.has_run else "no run is open"


def _engine(c: Context) -> str | None:
    """Why no command can be sent."""
    if not c.has_run:
        return "no run is open"
    if c.lost:
        return c.lost
    return c.read_only or None


def _target(c: Context) -> str | None:
    return None if c.targets else "no rollout is selected"


def _stop(c: Context) -> str | None:
    return _engine(c) or _target(c) or (None if any(map(can_stop, c.targets)) else _ended(c, "nothing runs"))


def _confirm_stop(c: Context) -> str | None:
    reason = _engine(c) or _target(c)
    if reason or any(can_confirm(r, c.standing) for r in c.targets):
        return reason
    return _ended(c, "its sandbox is proven gone already")


def _kill(c: Context) -> str | None:
    reason = _engine(c) or _target(c)
    if reason or any(map(can_kill, c.targets)):
        return reason
    return "no stop is under way (x stops gracefully first)"


def _restart(c: Context) -> str | None:
    reason = _engine(c) or _target(c)
    if reason or any(map(can_restart, c.targets)):
        return reason
    return "it has not started yet"


def _retry_failed(c: Context) -> str | None:
    return _engine(c) or (None if c.failed else "nothing has failed")


def _pause(c: Context) -> str | None:
    reason = _engine(c)
    if reason is None and c.stopping:
        reason = "the run is stopping"
    if reason is None and c.busy & {"pause", "unpause"}:
        reason = "the engine is still answering"
    return reason


def _stop_run(c: Context) -> str | None:
    return _engine(c)


def _ended(c: Context, otherwise: str) -> str:
    return "it has ended" if len(c.targets) == 1 and c.targets[0].ended_status else otherwise


def can_stop(r: RolloutView) -> bool:
    """A stop would change something: the rollout is at work or would start by itself."""
    return r.status in ("active", "queued")


def can_confirm(r: RolloutView, standing: Collection[str] = ()) -> bool:
    """A sandbox of it may still exist (one of an earlier attempt, too), or it may still make one.

    `standing`: names of the run's sandboxes that are not known to be gone.
    """
    if can_stop(r) or (r.sandbox is not None and not r.sandbox.state.settled):
        return True
    return any(name in standing for name in r.sandboxes)


def can_kill(r: RolloutView) -> bool:
    """A stop is under way, so that its grace period can be cut short."""
    under_way = r.sandbox is not None and r.sandbox.state in (State.STOPPING, State.SENT, State.CHECKING)
    return under_way or r.command in ("stop", "confirm_stop", "stop_all", "restart")


def can_restart(r: RolloutView) -> bool:
    """There is an attempt that a new one could follow."""
    return r.attempt > 0


def needs_force(r: RolloutView) -> bool:
    """The engine could not prove the sandbox gone: only an override starts another beside it."""
    return r.sandbox is not None and r.sandbox.state in (State.SURVIVED, State.UNKNOWN)


def _markable(c: Context) -> str | None:
    return (c.unmarkable or None) if c.scope == CLEANUP else _target(c)


def _marked(c: Context) -> str | None:
    return None if c.marks else "nothing is marked"


def _shown(c: Context) -> str | None:
    reason = None if c.scope == CLEANUP else _run_open(c)
    return reason or (None if c.shown else "the list is empty")


def _refresh(c: Context) -> str | None:
    if c.ending:
        return "a cleanup is under way"
    return "the providers are being asked" if c.asking else None


def _chosen(c: Context) -> str | None:
    """Why there is no leftover to do something about."""
    return None if c.marks else c.unmarkable or None


def _run_open_here(c: Context) -> str | None:
    return _run_open(c) if c.scope == CLEANUP else None


def _clean(c: Context) -> str | None:
    return c.locked or _refresh(c) or _chosen(c)


def _claim(c: Context) -> str | None:
    return c.locked or _refresh(c) or c.unclaimable or None


def _command(c: Context) -> str | None:
    return None if c.scope == CLEANUP else _run_open(c)


def _text_tab(c: Context) -> str | None:
    if c.scope == FOCUS and c.tab not in ("transcript", "output", "trace"):
        return "only in Transcript, Output and Trace"
    return None


def _output_tab(c: Context) -> str | None:
    return None if c.scope != FOCUS or c.tab == "output" else "only in Output"


def _focus(c: Context) -> str | None:
    return _run_open(c) or _target(c)


ACTIONS: tuple[Action, ...] = (
    Action("app.help", "Help", ("question_mark", "f1"), ALL, "The keys of this screen", bar=90, short="help"),
    Action("app.palette", "Palette", ("colon", "ctrl+p"), ALL, "Every action with its key", bar=80,
           short="palette"),
    Action("app.back", "Back", ("escape",), ALL, "Clear the filter, then the marks, then go back"),
    Action("app.quit", "Leave", ("q",), ALL, "Leave the viewer; a run with an engine of its own continues",
           bar=95, short="leave"),
    Action("app.interrupt", "Interrupt", ("ctrl+c",), ALL, "Ask: detach, stop the run, or neither"),
    Action("app.lock", "Read-only lock", ("exclamation_mark",), ALL,
           "Refuse everything that acts on the run, until pressed again"),
    Action("app.reload", "Reload settings", (), ALL, "Read settings, keys and themes again"),
    Action("go.runs", "Runs", ("1",), ALL, "Live and past runs"),
    Action("go.run", "Run", ("2",), ALL, "The rollouts of the open run", _run_open),
    Action("go.focus", "Focus", ("3",), ALL, "One rollout and its sandbox", _focus),
    Action("go.sandboxes", "Sandboxes", ("4",), ALL,
           "Those of the open run; again, or without a run: all there are, and what is left over"),
    Action("go.events", "Events", ("5",), ALL, "What the engine had to say", _run_open),
    Action("runs.open", "Open run", ("enter",), frozenset({RUNS}), "Attach to a live run, open a past one",
           bar=1, short="open"),
    Action("rollout.open", "Open rollout", ("enter",), frozenset({RUN, SANDBOXES}), "Focus on it", _focus,
           bar=1, short="open"),
    Action("rollout.stop", "Stop", ("x",), ON_RUN, "Stop gracefully (asks)", _stop, dangerous=True, bar=2,
           short="stop"),
    Action("rollout.confirm_stop", "Confirm-stop", ("X",), ON_RUN | {SANDBOXES},
           "Stop and wait for proof that the sandbox is gone (asks)", _confirm_stop, dangerous=True, bar=3,
           short="confirm"),
    Action("rollout.kill", "Force-kill", ("K",), ON_RUN, "Cut short the grace period of a stop under way (asks)",
           _kill, dangerous=True),
    Action("rollout.restart", "Restart", ("r",), ON_RUN,
           "Prove the old sandbox gone, then start a new attempt (asks)", _restart, dangerous=True, bar=4,
           short="restart"),
    Action("run.retry_failed", "Restart all failed", ("R",), ON_RUN, "A new attempt of each that failed (asks)",
           _retry_failed, dangerous=True),
    Action("run.pause", "Pause or unpause launching", ("P",), LIVE_SCREENS,
           "Launch no new attempts, or launch again; what runs goes on", _pause, dangerous=True, bar=8,
           short="pause"),
    Action("run.stop", "Stop the run…", (), LIVE_SCREENS, "Stop every rollout and end the run (asks)", _stop_run,
           dangerous=True),
    Action("cleanup.clean", "Delete leftovers", ("x", "X"), frozenset({CLEANUP}),
           "End what is marked, or the one under the cursor, with proof (asks)", _clean, dangerous=True, bar=2,
           short="delete"),
    Action("cleanup.claim", "Claim", ("C",), frozenset({CLEANUP}),
           "End one whose owner can't be proven dead (asks)", _claim, dangerous=True, bar=8, short="claim"),
    Action("cleanup.commands", "Dry run", ("c",), frozenset({CLEANUP}),
           "The providers' own commands that would end what is marked", _chosen, bar=4, short="dry run"),
    Action("cleanup.refresh", "Ask again", ("r", "f5"), frozenset({CLEANUP}), "Ask every provider again", _refresh,
           bar=3, short="ask again"),
    Action("cleanup.open", "Details", ("enter", "d"), frozenset({CLEANUP}),
           "Show or hide what is known of the sandbox", _shown, bar=9, short="details"),
    Action("view.boxes", "This run or all", ("tab",), frozenset({SANDBOXES, CLEANUP}),
           "The sandboxes of the open run, or all there are", _run_open_here, bar=10, short="run/all"),
    Action("mark.toggle", "Mark", ("space",), LISTS, "Mark or unmark the row under the cursor", _markable, bar=6,
           short="mark"),
    Action("mark.down", "Mark downwards", ("shift+down",), LISTS, "Mark and move down", _markable),
    Action("mark.up", "Mark upwards", ("shift+up",), LISTS, "Mark and move up", _markable),
    Action("mark.all", "Mark all shown", ("a",), LISTS, "Mark what the filter shows; of sandboxes, the leftovers",
           _shown),
    Action("mark.none", "Unmark all", ("u",), LISTS, "Forget every mark", _marked),
    Action("list.filter", "Filter or search", ("slash",), ALL - {SANDBOXES},
           "Text, key:value, /regex/; ! inverts. In Output: its lines; in other texts: search", _text_tab, bar=5,
           short="filter"),
    Action("list.match_next", "Next match", ("n",), ON_RUN | {EVENTS}, "Next that matches the filter or search",
           _text_tab),
    Action("list.match_previous", "Previous match", ("N",), ON_RUN | {EVENTS}, "Previous that matches",
           _text_tab),
    Action("list.sort", "Sort", ("o",), LISTS, "Next sort order"),
    Action("list.reverse", "Reverse order", ("O",), LISTS, "Turn the order round"),
    Action("list.group", "Group", ("b",), frozenset({RUN}), "Group by task, status, provider, error or not"),
    Action("list.attention", "Only attention", ("e",), LISTS,
           "Only what failed, stalls or may still exist", bar=7, short="attention"),
    Action("rollout.next", "Next rollout", ("right_square_bracket",), ON_RUN, "Next rollout of the list", _shown),
    Action("rollout.previous", "Previous rollout", ("left_square_bracket",), ON_RUN,
           "Previous rollout of the list", _shown),
    Action("failing.next", "Next failing", ("right_curly_bracket",), ON_RUN,
           "Next rollout that needs attention", _shown),
    Action("failing.previous", "Previous failing", ("left_curly_bracket",), ON_RUN,
           "Previous rollout that needs attention", _shown),
    Action("view.zoom", "Zoom", ("z",), frozenset({RUN}), "One pane on the whole screen, and back", _shown),
    Action("view.switch", "List or panes", ("tab",), frozenset({RUN}),
           "Move between list and panes; on a narrow screen show the other", bar=5, short="panes"),
    Action("tab.next", "Next tab", ("tab", "right"), frozenset({FOCUS}), "The tab to the right", bar=1,
           short="tabs"),
    Action("tab.previous", "Previous tab", ("shift+tab", "left"), frozenset({FOCUS}), "The tab to the left"),
    Action("text.follow", "Follow", ("f",), frozenset({FOCUS, EVENTS}), "Stay at the end as more comes",
           _text_tab),
    Action("text.wrap", "Wrap", ("w",), frozenset({FOCUS, EVENTS}), "Wrap long lines or cut them", _text_tab),
    Action("text.times", "Timestamps", ("t",), frozenset({FOCUS}), "Show when each line came",
           _output_tab),
    Action("open.output", "Output", ("l",), ON_RUN, "What the program wrote", _focus),
    Action("open.details", "Details", ("d",), ON_RUN, "The sandbox: provider, states, proof", _focus),
    Action("open.raw", "Raw JSON", ("i",), ON_RUN, "The trace record", _focus),
    Action("copy.text", "Copy", ("y",), ALL, "Copy what is selected (OSC 52; a long text goes to a file)"),
    Action("copy.command", "Copy as command", ("Y",), LIVE_SCREENS | {CLEANUP},
           "Copy the command that shows this", _command),
)  # fmt: skip

BY_ID = {action.id: action for action in ACTIONS}


def in_scope(scope: str, actions: Iterable[Action] = ACTIONS) -> list[Action]:
    """The actions whose keys work on the screen `scope`, in the order of the registry."""
    return [action for action in actions if scope in action.scopes]
