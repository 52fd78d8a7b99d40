"""The dialogs before leftovers are ended, and the sheet that shows what would be run."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from vf_tui import glyphs
from vf_tui.inventory_view import InventoryView
from vf_tui.render import timefmt
from vf_tui.render.boxes import owner_text, short_id
from vf_tui.render.commands import command_lines
from vf_tui.render.line import Line, wrap
from vf_tui.safe_text import cell
from vf_tui.screens.base import LOW
from vf_tui.screens.confirm import CANCEL, CONFIRM, WIDTH, Dialog
from vf_tui.widgets.log_pane import LogPane

if TYPE_CHECKING:
    from vf_core.sandboxes.items import Item
    from vf_tui.app import VfTuiApp


class EndDialog(Dialog):
    """Asks whether `keys` of the inventory are to be ended; their number must be typed.

    What can't be ended any more (proven gone, alive again, no longer known) is left out, said, and asked anew; it
    never grows. `final` is what was confirmed.
    """

    def __init__(self, keys: Sequence[str], view: InventoryView, *, hidden: int = 0) -> None:
        self.keys = list(keys)
        self.view = view
        self.final: tuple[str, ...] = ()
        self._hidden = hidden
        self._typed = ""
        self._drawn: list[str] | None = None
        super().__init__(self._question(), [(CANCEL, "Cancel", "n"), (CONFIRM, self._verb(), "y")])

    def compose(self) -> ComposeResult:
        """As `Dialog`, with a list that costs no more for thousands of sandboxes than for a few."""
        with Vertical(id="dialog"):
            yield Static("", id="title", markup=False)
            yield Static("", id="text", markup=False)
            ids = LogPane(id="ids")
            ids.can_focus = ids.following = False
            yield ids
            yield Static("", id="remark", markup=False)
            yield from self.buttons()

    def confirmed(self) -> tuple[str, ...]:
        """The keys that were confirmed; empty before."""
        return self.final

    # -- what it asks

    def eligible(self, key: str) -> bool:
        """`key` may still be ended."""
        return self.view.markable(key)

    @property
    def items(self) -> list[Item]:
        """What would be ended now."""
        return [self.view.items[key] for key in self.keys if key in self.view.items]

    def _verb(self) -> str:
        return f"Delete {len(self.keys)}" if len(self.keys) != 1 else "Delete"

    def _question(self) -> str:
        if not self.keys:
            return "Nothing is left to delete"
        if len(self.keys) == 1:
            return f"Delete the leftover {short_id(self.items[0])}?"
        return f"Delete {len(self.keys)} leftover sandboxes?"

    def heading(self) -> Content:
        """The question, and what is to be typed."""
        question = Content(cell(self._question()))
        if not self.keys:
            return question
        tail = ", then y" if self._typed == str(len(self.keys)) else ""
        field = Content.assemble((self._typed or " ", "reverse"))
        typed = Content.assemble(
            (f"Type {len(self.keys)} to confirm: ", "not bold"), field, (tail, "not bold")
        )
        return Content("\n").join([question, typed])

    def content(self) -> list[Content]:
        """What is to be known."""
        if not self.keys:
            return []
        note = "Owners are looked at again first; then each end must be proven."
        return [*(Content(line) for line in self._facts()), Content.styled(note, "dim")]

    def listed(self) -> list[Line]:
        """Every sandbox by its id."""
        return [self._named(item) for item in self.items]

    def _facts(self) -> list[str]:
        kinds: dict[str, int] = {}
        for item in self.items:
            kinds[item.kind] = kinds.get(item.kind, 0) + 1
        out = [", ".join(f"{n} {cell(kind, 20)}" for kind, n in kinds.items())]
        prices = [item.price for item in self.items if item.price is not None]
        if prices:
            out[0] += f", {timefmt.money(sum(prices))} an hour"
        if self._hidden:
            out.append(f"{self._hidden} of them {'is' if self._hidden == 1 else 'are'} hidden by the filter")
        return out

    def _named(self, item: Item) -> Line:
        id, between = short_id(item), glyphs.between()
        name = f"{between}{item.name}" if item.name and item.name not in id else ""
        what = cell(f"{item.kind}{name}{between}{item.owner_proof or owner_text(item)}", 200)
        return ((id, "strong"), ("  ", ""), (what, "dim"))

    def draw(self) -> None:
        """See `Dialog`."""
        self.query_one("#title", Static).update(self.heading())
        if self._drawn == self.keys:
            return
        self._drawn = list(self.keys)
        self.query_one("#text", Static).update(Content("\n").join(self.content()))
        lines, pane = self.listed(), self.query_one(LogPane)
        pane.wrapping = False
        height = self.app.size.height
        self.set_class(height < LOW, "-low")
        pane.styles.height = min(len(lines), max(2, height // (5 if height < LOW else 3)))
        pane.set_lines(lines)
        button = self.query_one("#answer-1", Button)
        button.label = Content.assemble(("y", "bold"), " ", self._verb())
        button.disabled = not self.keys

    # -- when things change underneath

    def flush(self, changed: AbstractSet[str] | None, now: float) -> None:
        """See `Dialog`."""
        self.look_again()

    def look_again(self) -> bool:
        """Whether what is on the screen still holds; what does not is left out and asked anew."""
        left = {key for key in self.keys if not self.eligible(key)}
        if not left:
            return True
        self.keys = [key for key in self.keys if key not in left]
        self._typed = ""
        self._hidden = self.view.hidden(self.keys)
        self.draw()
        self.guard.again()
        one = len(left) == 1
        rest = "Type the number again." if self.keys else "Nothing is left to do."
        what = f"{len(left)} {'is' if one else 'are'} no leftover{'' if one else 's'} any more"
        self.remark(f"{what}: left out. {rest}")
        return False

    # -- input

    def other_key(self, event: events.Key) -> None:
        """Digits of the number, the list's window, or the answer's key."""
        if event.key in ("pagedown", "pageup"):
            self.query_one(LogPane).action_page(1 if event.key == "pagedown" else -1)
        elif event.key == "backspace":
            self._typed = self._typed[:-1]
            self.draw()
        elif event.character and event.character.isdecimal():
            self._typed = (self._typed + event.character)[:9]
            self.draw()
        else:
            super().other_key(event)

    def answer(self, n: int) -> None:
        """Confirm only what is on the screen, and only with its number typed."""
        if n == 0:
            super().answer(0)
            return
        if not self.look_again() or not self.keys:
            return
        if self._typed != str(len(self.keys)):
            self._typed = ""
            self.draw()
            self.remark(f"Type {len(self.keys)} first, then y")
            return
        self.final = tuple(self.keys)
        super().answer(n)


class ClaimDialog(EndDialog):
    """Asks whether one sandbox is to be ended though nobody can prove that its owner is dead."""

    def eligible(self, key: str) -> bool:
        """See `EndDialog`."""
        item = self.view.items.get(key)
        return item is not None and not self.view.why_no_claim(item)

    def _question(self) -> str:
        return f"Claim and delete {short_id(self.items[0])}?" if self.items else "Nothing is left to delete"

    def _verb(self) -> str:
        return "Claim and delete"

    def content(self) -> list[Content]:
        """What it would do."""
        text = "If its owner is alive, this ends its rollout. It can't be undone."
        return [Content.styled(text, "bold")] if self.keys else []

    def listed(self) -> list[Line]:
        """Whose it may be, and what is not known of it."""
        if not self.items:
            return []
        item, now = self.items[0], self.tui.clock()
        made = "" if item.created is None else f"made {timefmt.span(now - item.created)} ago"
        seen = ", ".join(part for part in (made, item.status) if part) or "never, as far as is known"
        rows = (
            ("sandbox", f"{item.kind} {item.id or item.name}"),
            ("owner", owner_text(item)),
            ("last seen", seen),
            ("not known", item.owner_proof or item.why or "whether its owner is still at work"),
        )
        room = max(20, min(WIDTH, self.app.size.width) - 18)
        return [
            ((f"{'' if n else name:<10}", "dim"), (piece, "text"))
            for name, text in rows
            for n, piece in enumerate(wrap(cell(text, 400), room))
        ]


class CommandsSheet(ModalScreen[None], inherit_bindings=False):
    """The dry run: the providers' own commands that would end these sandboxes. Nothing is executed; `y` copies."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,ctrl+c,enter,c", "dismiss", "Close", show=False, id="commands.close"),
        Binding("y,Y", "copy", "Copy", show=False, id="commands.copy"),
    ]

    def __init__(self, items: Sequence[Item]) -> None:
        super().__init__()
        self._lines = list(command_lines(items))
        self._count = len(items)

    @property
    def text(self) -> str:
        """What `y` copies."""
        return "\n".join(self._lines)

    def compose(self) -> ComposeResult:
        """A scrolling sheet."""
        what = f"Dry run: {self._count} leftover{'s' * (self._count != 1)}, nothing is executed"
        with Vertical(id="sheet"):
            yield Static(Content(what), id="title", markup=False)
            pane = LogPane(id="text", max_lines=2 * len(self._lines) + 1)
            pane.following = False
            yield pane
            yield Static(Content(f"y copies{glyphs.between()}esc closes"), id="foot", markup=False)

    def on_mount(self) -> None:
        """The commands, from the first."""
        pane = self.query_one(LogPane)
        pane.set_lines([((line, "dim" if line.startswith("#") else "text"),) for line in self._lines])
        pane.focus()

    async def action_dismiss(self, result: None = None) -> None:
        """Close."""
        self.dismiss(result)

    def action_copy(self) -> None:
        """Copy all commands."""
        cast("VfTuiApp", self.app).copy(self.text)
