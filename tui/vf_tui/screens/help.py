"""`?`: the keys of the screen below, and why one of them does nothing now."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from vf_tui import glyphs
from vf_tui.actions import ALL, CLEANUP, FOCUS, Action, Context, in_scope
from vf_tui.render.line import wrap
from vf_tui.safe_text import cell

if TYPE_CHECKING:
    from vf_tui.app import VfTuiApp

NAMES = {CLEANUP: "all-sandboxes"}
"""Screens that are called otherwise than their scope."""
WIDTH, KEYS = 90, 13
"""Cells of the sheet at most, and of its column of keys."""

OPENING = (("enter space", "open or close a tool call"), ("+ -", "open, close all of them"))
MOVING = (
    ("↑ ↓ j k", "move"),
    ("PgUp PgDn", "move by a window"),
    ("Home End g G", "first, last; End follows again"),
    ("tab shift+tab", "next, previous part of the screen"),
)


class HelpScreen(ModalScreen[None], inherit_bindings=False):
    """A sheet over the screen it is about."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,f1,ctrl+c,enter", "dismiss", "Close", show=False, id="help.close"),
        Binding("down,j", "move(1)", show=False, id="help.down"),
        Binding("up,k", "move(-1)", show=False, id="help.up"),
        Binding("pagedown,space", "page(1)", show=False, id="help.page_down"),
        Binding("pageup", "page(-1)", show=False, id="help.page_up"),
    ]

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._about = context

    def compose(self) -> ComposeResult:
        """A scrolling sheet."""
        with Vertical(id="sheet"):
            yield Static(
                Content(f"Keys of the {NAMES.get(self._about.scope, self._about.scope)} screen"),
                id="title",
                markup=False,
            )
            with VerticalScroll(id="body", can_focus=False):
                yield Static(self.sheet(), id="text", markup=False)
            yield Static(
                Content(f"esc closes{glyphs.between()}keys.toml changes keys by their names"),
                id="foot",
                markup=False,
            )

    def sheet(self) -> Content:
        """All keys: this screen's, then everybody's, then those that move."""
        here = in_scope(self._about.scope)
        out = [line for a in here if a.scopes != ALL for line in self._lines(a)]
        out += [Content(""), Content.styled("on every screen", "dim")]
        out += [line for a in here if a.scopes == ALL for line in self._lines(a)]
        out += [Content(""), Content.styled("moving about", "dim")]
        moving = (*OPENING, *MOVING) if self._about.scope == FOCUS else MOVING
        out += [Content.assemble((f"{keys:>{KEYS}}", "bold"), f"  {what}") for keys, what in moving]
        return Content("\n").join(out)

    def _lines(self, action: Action) -> list[Content]:
        app = cast("VfTuiApp", self.app)
        keys = app.keymap.label(action)
        if not keys:
            return []
        room = max(20, min(self.app.size.width, WIDTH) - KEYS - 8)
        reason = action.enabled(self._about)
        text = f"{action.label}: {action.tip}" if action.tip else action.label
        first, *rest = wrap(text, room)
        style = "dim" if reason is not None else ""
        out = [Content.assemble((f"{keys:>{KEYS}}", style or "bold"), "  ", (first, style))]
        out += [Content.styled(f"{'':{KEYS}}  {line}", style) for line in rest]
        if reason is not None:
            out.append(Content.styled(f"{'':{KEYS}}  not now: {cell(reason)}", "dim italic"))
        return out

    async def action_dismiss(self, result: None = None) -> None:
        """Close."""
        self.dismiss(result)

    def action_move(self, step: int) -> None:
        """Scroll by a line."""
        self.query_one("#body", VerticalScroll).scroll_relative(y=step, animate=False)

    def action_page(self, step: int) -> None:
        """Scroll by a window."""
        body = self.query_one("#body", VerticalScroll)
        body.scroll_relative(y=step * max(1, body.size.height - 1), animate=False)
