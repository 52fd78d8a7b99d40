"""The dialogs before leftovers are ended, and the sheet that shows what would be run."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from vf_tui import glyphs
from vf_tui.inventory_view import InventoryView
from vf_tui.render import timefmt
from vf_tui.render.boxes import owner_text, short_id
from vf_tui.render.commands import command_lines
from vf_tui.render.line import cut
from vf_tui.safe_text import cell
from vf_tui.screens.confirm import CANCEL, CONFIRM, WIDTH, Dialog

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
        super().__init__(self._question(), [(CANCEL, "Cancel", "n"), (CONFIRM, self._verb(), "y")])

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

    def content(self) -> list[Content]:
        """What is to be typed, what is to be known, and every sandbox by its id."""
        if not self.keys:
            return []
        out = [self._field(), *(Content(line) for line in self._facts())]
        out.append(
            Content.styled(
                "Each owner is looked at again first; then the provider must prove the end.", "dim"
            )
        )
        return out + [self._named(item) for item in self.items]

    def _field(self) -> Content:
        tail = ", then y" if self._typed == str(len(self.keys)) else ""
        field = Content.assemble((self._typed or " ", "reverse"))
        return Content.assemble(f"Type {len(self.keys)} to confirm: ", field, tail)

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

    def _named(self, item: Item) -> Content:
        room = max(10, min(WIDTH, self.app.size.width) - 8)
        name = cut(cell(item.id or item.name, 80), max(14, room // 2))
        rest = cell(f"{item.kind}{glyphs.between()}{item.owner_proof or owner_text(item)}", 200)
        return Content.assemble("  ", (name, "bold"), "  ", (cut(rest, room - len(name)), "dim"))

    def draw(self) -> None:
        """See `Dialog`."""
        self._heading = self._question()
        super().draw()
        button = self.query_one("#answer-1", Button)
        button.label = Content.assemble(("y", "bold"), " ", self._verb())
        button.disabled = not self.keys
        self.set_class(True, "-grave")

    # -- when things change underneath

    def flush(self, changed: AbstractSet[str] | None, now: float) -> None:
        """See `Dialog`."""
        self.look_again()

    def look_again(self) -> bool:
        """Whether what is on the screen still holds; what does not is left out and asked anew."""
        left = [key for key in self.keys if not self.eligible(key)]
        if not left:
            return True
        self.keys = [key for key in self.keys if key not in left]
        self._typed = ""
        self._hidden = self.view.hidden(self.keys)
        self.draw()
        self.guard.again()
        one = len(left) == 1
        rest = "Type the number again." if self.keys else "Nothing is left to do."
        self.remark(
            f"{len(left)} {'is' if one else 'are'} no leftover{'' if one else 's'} any more: left out. {rest}"
        )
        return False

    # -- input

    def other_key(self, event: events.Key) -> None:
        """Digits of the number, or the answer's key."""
        body = self.query_one("#body", VerticalScroll)
        if event.key in ("pagedown", "pageup"):
            step = max(1, body.size.height - 1)
            body.scroll_relative(y=step if event.key == "pagedown" else -step, animate=False)
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
        return f"Claim and delete {short_id(self.items[0])}?" if self.keys else "Nothing is left to delete"

    def _verb(self) -> str:
        return "Claim and delete"

    def content(self) -> list[Content]:
        """Whose it may be, and what is not known of it."""
        if not self.keys or not self.items:
            return []
        item, now = self.items[0], self.tui.clock()
        seen = (
            "never, as far as is known"
            if item.created is None
            else f"made {timefmt.span(now - item.created)} ago"
        )
        rows = [
            ("sandbox", f"{item.kind} {item.id or item.name}"),
            ("owner", owner_text(item)),
            ("last seen", f"{seen}{f', {item.status}' if item.status else ''}"),
            ("not known", item.owner_proof or item.why or "whether its owner is still at work"),
        ]
        out = [
            self._field(),
            Content.styled("If its owner is alive, this ends its rollout. It can't be undone.", "bold"),
        ]
        return out + [Content.assemble((f"{name:<10}", "dim"), cell(text, 400)) for name, text in rows]


class CommandsSheet(ModalScreen[None], inherit_bindings=False):
    """The dry run: the providers' own commands that would end these sandboxes. Nothing is executed; `y` copies."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,ctrl+c,enter,c", "dismiss", "Close", show=False, id="commands.close"),
        Binding("y,Y", "copy", "Copy", show=False, id="commands.copy"),
        Binding("down,j", "move(1)", show=False, id="commands.down"),
        Binding("up,k", "move(-1)", show=False, id="commands.up"),
        Binding("pagedown,space", "page(1)", show=False, id="commands.page_down"),
        Binding("pageup", "page(-1)", show=False, id="commands.page_up"),
        Binding("home,g", "edge(-1)", show=False, id="commands.first"),
        Binding("end,G", "edge(1)", show=False, id="commands.last"),
    ]

    def __init__(self, items: Sequence[Item]) -> None:
        super().__init__()
        self.text = "\n".join(command_lines(items))
        self._count = len(items)

    def compose(self) -> ComposeResult:
        """A scrolling sheet."""
        what = "leftover" if self._count == 1 else "leftovers"
        with Vertical(id="sheet"):
            yield Static(
                Content(f"Dry run: {self._count} {what}, nothing is executed"), id="title", markup=False
            )
            with VerticalScroll(id="body", can_focus=False):
                yield Static(Content(self.text), id="text", markup=False)
            yield Static(Content(f"y copies{glyphs.between()}esc closes"), id="foot", markup=False)

    async def action_dismiss(self, result: None = None) -> None:
        """Close."""
        self.dismiss(result)

    def action_copy(self) -> None:
        """Copy all commands."""
        cast("VfTuiApp", self.app).copy(self.text)

    def action_move(self, step: int) -> None:
        """Scroll by a line."""
        self.query_one("#body", VerticalScroll).scroll_relative(y=step, animate=False)

    def action_page(self, step: int) -> None:
        """Scroll by a window."""
        body = self.query_one("#body", VerticalScroll)
        body.scroll_relative(y=step * max(1, body.size.height - 1), animate=False)

    def action_edge(self, step: int) -> None:
        """To the first or last line."""
        body = self.query_one("#body", VerticalScroll)
        body.scroll_to(y=0 if step < 0 else body.max_scroll_y, animate=False)
