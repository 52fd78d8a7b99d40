"""What every screen of the app shares: keys out of the registry, a notice, a key bar, and a way to be refreshed."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingsMap
from textual.screen import Screen
from textual.widget import Widget

from vf_core.events.state import RolloutView
from vf_tui.actions import Action, Context, in_scope
from vf_tui.widgets.bars import KeyBar, KeyHint, Notice

if TYPE_CHECKING:
    from vf_tui.app import VfTuiApp
    from vf_tui.keymap import Keymap

NARROW, WIDE = 60, 110
LOW = 20
NOTICE_SECONDS = 8.0


class BaseScreen(Screen[None], inherit_bindings=False):
    """A screen of the app. Subclasses set `SCOPE`, compose `body` and draw in `flush`.

    A screen that is not on top does no work; when it comes back it is flushed with `changed` None.
    """

    SCOPE: ClassVar[str] = ""
    ALLOW_SELECT = False
    AUTO_FOCUS = ""
    ESCAPE_TO_MINIMIZE = False

    @property
    def tui(self) -> VfTuiApp:
        """The app."""
        return cast("VfTuiApp", self.app)

    def compose(self) -> ComposeResult:
        """The body over a notice and the key bar."""
        yield from self.body()
        yield Notice(id="notice")
        yield KeyBar(id="keys")

    def body(self) -> Iterable[Widget]:
        """The screen's own widgets."""
        return ()

    def on_mount(self) -> None:
        """Take the keys."""
        self.bind_keys(self.tui.keymap)

    def bind_keys(self, keymap: Keymap) -> None:
        """Bind the keys of this screen's actions, as `keymap` has them."""
        bindings = [
            Binding(key, f"do('{action.id}')", action.label, show=False, id=action.id)
            for action in in_scope(self.SCOPE)
            for key in keymap.of(action)
        ]
        bindings += [Binding("shift+tab", "app.focus_previous", show=False, id="focus.previous")]
        if not any(binding.key == "tab" for binding in bindings):
            bindings.append(Binding("tab", "app.focus_next", show=False, id="focus.next"))
        self._bindings = BindingsMap(bindings)
        self.refresh_bindings()

    def action_do(self, id: str) -> None:
        """Do what the registry calls `id`."""
        self.tui.perform(id)

    def arrived(self) -> None:
        """The user has come to this screen from another; not called when a dialog over it closes."""

    def key_pressed(self) -> None:
        """A key came while this screen was on top."""

    # -- what actions need to know

    def targets(self) -> list[RolloutView]:
        """The rollouts that an action would be about."""
        return []

    def current_id(self) -> str:
        """The one rollout that opening is about; "" when there is none."""
        targets = self.targets()
        return targets[0].id if targets else ""

    def copy_text(self) -> str:
        """What `y` copies; "" when there is nothing."""
        return ""

    def copy_command(self) -> str:
        """The command that shows this from a shell."""
        return self.tui.come_back

    def context(self) -> Context:
        """What the registry may look at."""
        return self.tui.context(self.SCOPE, self.targets())

    # -- drawing

    def flush(self, changed: AbstractSet[str] | None, now: float) -> None:
        """Draw what changed (None: everything) as of `now`."""

    @property
    def ready(self) -> bool:
        """Its widgets are there: not before it is mounted, and not once the app is closing."""
        return self.is_mounted and self.is_attached and bool(self.query("#notice"))

    def refresh_all(self) -> None:
        """Draw everything, if this screen is on top and has its size."""
        if self.ready and self.is_current and self.size.width:
            self.flush(None, self.tui.now())
            self.show_keys()

    def on_screen_resume(self) -> None:
        """On top again."""
        self.call_after_refresh(self.refresh_all)

    def on_resize(self) -> None:
        """Arrange for the size; draw all."""
        size = self.app.size
        self.set_class(size.width < NARROW, "-narrow")
        self.set_class(size.width >= WIDE, "-wide")
        self.set_class(size.height < LOW, "-low")
        self.call_after_refresh(self.refresh_all)

    def say(self, text: str, kind: str = "info", seconds: float | None = NOTICE_SECONDS) -> None:
        """Show `text` in the notice line; `seconds` None: until something else is said."""
        if not self.ready:
            return
        until = None if seconds is None else self.tui.clock() + seconds
        self.query_one("#notice", Notice).show(text, kind, until)
        self._answered = text
        self.set_class(bool(text), "-noting")
        self.tui.wake()

    def mention(self, text: str, kind: str, rollout: str = "") -> None:
        """Show news of the run, unless an answer to the user is still to be read."""
        if self.said and self.said == self._answered:
            return
        self.say(text, kind)
        self._answered = ""

    _answered = ""

    @property
    def said(self) -> str:
        """What the notice line shows."""
        return self.query_one("#notice", Notice).text if self.ready else ""

    def tick(self) -> None:
        """Time has passed."""
        self.query_one("#notice", Notice).tick(self.tui.clock())
        self.set_class(bool(self.said), "-noting")

    @property
    def ticking(self) -> bool:
        """An age that it shows is growing."""
        return False

    def show_keys(self) -> None:
        """Bring the key bar up to date."""
        context = self.context()
        self.query_one("#keys", KeyBar).show([self._hint(a, context) for a in self._bar()])

    def _bar(self) -> list[Action]:
        return sorted((a for a in in_scope(self.SCOPE) if a.bar), key=lambda a: (a.id == "app.help", a.bar))

    def _hint(self, action: Action, context: Context) -> KeyHint:
        return KeyHint(self.tui.keymap.first(action), action.name, action.enabled(context) is None)

    def back(self) -> bool:
        """Escape: undo one thing of this screen; False when there is nothing to undo."""
        return False
