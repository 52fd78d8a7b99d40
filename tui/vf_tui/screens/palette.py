"""The palette: every action with its key, found by typing a part of its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from vf_tui.actions import ALL, Action, Context, in_scope
from vf_tui.render.line import cut
from vf_tui.safe_text import cell

if TYPE_CHECKING:
    from vf_tui.app import VfTuiApp

WIDTH, KEYS, LABEL = 90, 9, 26
"""Cells of the sheet at most, and of its columns of keys and names."""
HIDDEN = frozenset({"app.palette", "app.back"})


class PaletteScreen(ModalScreen[str | None], inherit_bindings=False):
    """Ends with the id of the chosen action, or None."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c,ctrl+p", "dismiss", "Close", show=False, id="palette.close"),
        Binding("down,tab", "move(1)", show=False, id="palette.down", priority=True),
        Binding("up,shift+tab", "move(-1)", show=False, id="palette.up", priority=True),
        Binding("pagedown", "move(8)", show=False, id="palette.page_down", priority=True),
        Binding("pageup", "move(-8)", show=False, id="palette.page_up", priority=True),
    ]

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._about = context

    def compose(self) -> ComposeResult:
        """A field over a list."""
        with Vertical(id="sheet"):
            yield Input(placeholder="what to do", compact=True)
            yield OptionList(compact=True, markup=False)

    def on_mount(self) -> None:
        """Show everything; the field has the keys."""
        self.query_one(OptionList).can_focus = False
        self._fill("")
        self.query_one(Input).focus()

    def _found(self, text: str) -> list[Action]:
        words = text.casefold().split()
        out = [
            action
            for action in in_scope(self._about.scope)
            if action.id not in HIDDEN
            and all(word in f"{action.label} {action.id} {action.tip}".casefold() for word in words)
        ]
        # What can be done comes before what can't, a match in the name before one in the explanation, and what
        # belongs to this screen before what is everywhere.
        first = text.casefold().strip()
        out.sort(
            key=lambda a: (
                a.enabled(self._about) is not None,
                first not in a.label.casefold(),
                a.scopes == ALL,
            )
        )
        return out

    def _fill(self, text: str) -> None:
        view = self.query_one(OptionList)
        view.clear_options()
        view.add_options([Option(self._line(action), id=action.id) for action in self._found(text)])
        if view.option_count:
            view.highlighted = 0

    def _line(self, action: Action) -> Content:
        keys = cast("VfTuiApp", self.app).keymap.label(action)
        reason = action.enabled(self._about)
        room = max(10, min(self.app.size.width, WIDTH) - KEYS - LABEL - 8)
        tip = action.tip if reason is None else f"not now: {cell(reason)}"
        style = "" if reason is None else "dim"
        return Content.assemble(
            (f"{keys:>{KEYS}}", style or "bold"),
            (f"  {action.label:<{LABEL}} ", style),
            (cut(tip, room), "dim"),
        )

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show what matches."""
        event.stop()
        self._fill(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Do what is highlighted."""
        event.stop()
        view = self.query_one(OptionList)
        if view.highlighted is not None and view.option_count:
            self.dismiss(view.get_option_at_index(view.highlighted).id)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """A click on a line."""
        event.stop()
        self.dismiss(event.option.id)

    async def action_dismiss(self, result: str | None = None) -> None:
        """Close without doing anything."""
        self.dismiss(result)

    def action_move(self, step: int) -> None:
        """Move the highlight, round the end by one."""
        view = self.query_one(OptionList)
        if not view.option_count:
            return
        at = (view.highlighted or 0) + step
        view.highlighted = (
            at % view.option_count if abs(step) == 1 else min(max(0, at), view.option_count - 1)
        )
