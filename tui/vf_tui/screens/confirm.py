"""The dialog before anything is stopped or restarted. It answers only to keys that were meant for it."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from vf_core.events.state import RunState
from vf_tui.guard import BURST_SECONDS, Guard
from vf_tui.render.line import cut
from vf_tui.requests import Request, Review, review
from vf_tui.safe_text import cell
from vf_tui.screens.base import LOW

if TYPE_CHECKING:
    from vf_tui.app import VfTuiApp

WIDTH = 72
"""Cells of a dialog at most."""
TOO_FAST = "those keys came too fast to be meant for this dialog"


class Dialog(ModalScreen[str], inherit_bindings=False):
    """A question with a few answers. `answers` are (value, label, key); the first is the safe one: it has the
    focus, and escape, `n` and ctrl+c give it. The dialog's result is the value.

    Keys in its first 0.3 s, pastes and bursts of keys are ignored; a letter counts only if it comes alone.
    """

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = []
    CANCELS: ClassVar[int] = 0
    """The answer that escape, `n` and ctrl+c give."""

    def __init__(
        self, title: str, answers: Sequence[tuple[str, str, str]], *, text: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self._heading = title
        self._answers = list(answers)
        self._text = list(text)
        self._ignored = 0

    @property
    def tui(self) -> VfTuiApp:
        """The app."""
        return cast("VfTuiApp", self.app)

    def compose(self) -> ComposeResult:
        """Title, text, remark, answers."""
        with Vertical(id="dialog"):
            yield Static("", id="title", markup=False)
            with VerticalScroll(id="body", can_focus=False):
                yield Static("", id="text", markup=False)
            yield Static("", id="remark", markup=False)
            yield from self.buttons()

    def buttons(self) -> ComposeResult:
        """A button for each answer."""
        with Horizontal(id="answers"):
            for n, (_, label, key) in enumerate(self._answers):
                yield Button(_label(label, key), compact=True, id=f"answer-{n}")

    def on_mount(self) -> None:
        """Listen only from a moment after now."""
        self.guard = Guard(self.tui.monotonic)
        self.query_one("#answer-0", Button).focus()
        self.draw()

    def draw(self) -> None:
        """Show the question as it stands."""
        self.query_one("#title", Static).update(self.heading())
        self.query_one("#text", Static).update(Content("\n").join(self.content()))
        self.call_after_refresh(self.fit)

    def fit(self) -> None:
        """Whatever the height, the question and its answers are seen; what is between them scrolls."""
        height = self.app.size.height
        self.set_class(height < LOW, "-low")
        around = sum(self.query_one(name).outer_size.height for name in ("#title", "#remark", "#answers"))
        for body in self.query("#body"):
            body.styles.max_height = max(1, height - around - (2 if height < LOW else 4))

    def on_resize(self, event: events.Resize) -> None:
        """Another height."""
        self.call_after_refresh(self.fit)

    def heading(self) -> Content:
        """The question."""
        return Content(cell(self._heading))

    def content(self) -> list[Content]:
        """The lines between title and answers."""
        return [Content(line) for line in self._text]

    def remark(self, text: str) -> None:
        """Say something above the answers."""
        self.query_one("#remark", Static).update(Content(cell(text)))
        self.call_after_refresh(self.fit)

    def flush(self, changed: AbstractSet[str] | None, now: float) -> None:
        """The run has moved on underneath."""

    # -- input

    def on_key(self, event: events.Key) -> None:
        """One key of a dialog; it goes nowhere else."""
        event.stop()
        event.prevent_default()
        if not self.guard.key():
            self._ignored += 1
            if self._ignored > 1:
                self.remark(TOO_FAST)
            return
        if event.key in ("escape", "n", "ctrl+c"):
            self.answer(self.CANCELS)
        elif event.key in ("pageup", "pagedown"):
            for body in self.query("#body"):
                step = body.size.height * (1 if event.key == "pagedown" else -1)
                body.scroll_relative(y=step, animate=False)
        elif event.key in ("tab", "right", "down"):
            self.focus_next(Button)
        elif event.key in ("shift+tab", "left", "up"):
            self.focus_previous(Button)
        elif event.key == "enter" and isinstance(self.focused, Button):
            self.press(self._index(self.focused))
        else:
            self.other_key(event)

    def other_key(self, event: events.Key) -> None:
        """A key that may belong to an answer."""
        for n, (_, _, key) in enumerate(self._answers):
            if key and event.key == key:
                self.press(n)

    def press(self, n: int) -> None:
        """Give answer `n`, if no other key follows at once (then it was pasted)."""
        if n == self.CANCELS:
            self.answer(n)
        else:
            self.set_timer(BURST_SECONDS * 1.4, lambda: self._alone(n))

    def _alone(self, n: int) -> None:
        if self.guard.ready and self.guard.alone():
            self.answer(n)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A click on an answer."""
        event.stop()
        if self.guard.ready:
            self.answer(self._index(event.button))

    @staticmethod
    def _index(button: Button) -> int:
        return int((button.id or "answer-0").rpartition("-")[2])

    def answer(self, n: int) -> None:
        """Close with answer `n`."""
        if self.is_current:
            self.dismiss(self._answers[n][0])


def _label(label: str, key: str) -> Content:
    return Content.assemble((key, "bold"), " ", cell(label)) if key else Content(cell(label))


CANCEL, CONFIRM = "cancel", "confirm"


class ConfirmScreen(Dialog):
    """Asks for a `Request`. What it would hit is looked at again whenever the run changes; it never grows.

    Where every rollout is named and one can't be hit any more, it says so and must be confirmed anew. Where
    they are too many to name, those that have ended are counted and left out; the number to type stays the
    one that was asked for, or a busy run could never be stopped. `final` is what was confirmed.
    """

    def __init__(self, request: Request, state: RunState) -> None:
        self.request = request
        self.review: Review = review(request, state)
        self.final: Request | None = None
        self._counted = request.kind.whole_run or self.review.more > 0
        self._required = self.review.typed
        self._typed = ""
        super().__init__(self.review.title, [(CANCEL, "Cancel", "n"), (CONFIRM, self.review.verb, "y")])

    def content(self) -> list[Content]:
        """What will be hit, and what is to be known."""
        r = self.review
        room = max(10, min(WIDTH, self.app.size.width) - 9)
        out = []
        for id, what in r.named:
            name = cut(cell(id, 40), room // 2)
            out.append(
                Content.assemble("  ", (name, "bold"), "  ", (cut(cell(what), room - len(name)), "dim"))
            )
        if r.more:
            out.append(Content(f"  … and {r.more} more"))
        if r.ids or self.request.kind.whole_run:
            out += [Content(fact) for fact in r.facts]
            out.append(Content.styled(r.detail, "dim"))
        if self._counted and r.gone and not self.request.kind.whole_run:
            out.append(Content(f"{len(r.gone)} ended or began anew since and {_be(len(r.gone))} left out"))
        if option := self.request.option:
            mark = "x" if option.on else " "
            out.append(
                Content.assemble(
                    ("[", "dim"), mark, ("]", "dim"), " ", (option.key, "bold"), f"  {option.label}"
                )
            )
        return out

    def heading(self) -> Content:
        """The question, and what is to be typed."""
        question = super().heading()
        if self._required is None:
            return question
        field = Content.assemble((self._typed or " ", "reverse"))
        tail = ", then y" if self._typed == str(self._required) else ""
        typed = (f"Type {self._required} to confirm: ", "not bold")
        return Content("\n").join([question, Content.assemble(typed, field, (tail, "not bold"))])

    def draw(self) -> None:
        """See `Dialog`."""
        self._heading = self.review.title
        super().draw()
        button = self.query_one("#answer-1", Button)
        button.label = _label(self.review.verb, "y")
        button.disabled = not self._something
        option = self.request.option
        self.set_class(bool(self._required or (option and option.forced)), "-grave")

    @property
    def _something(self) -> bool:
        """There is something to do."""
        return bool(self.review.ids) or self.request.kind.whole_run

    def flush(self, changed: AbstractSet[str] | None, now: float) -> None:
        """Look again; ask again if it would hit others than it said."""
        self._look_again()

    def _look_again(self) -> bool:
        """Whether what is on the screen still holds."""
        old, new = self.review, review(self.request, self.tui.state)
        if new.ids == old.ids or self._counted:
            if new != old:
                self.review = new
                self.draw()
            return True
        left = [id for id in old.ids if id not in new.ids]
        self.request = self.request.only(new.ids)
        self._ask_anew()
        self.guard.again()
        verb = "has" if len(left) == 1 else "have"
        rest = "Confirm again." if new.ids else "Nothing is left to do."
        self.remark(f"{', '.join(left)} {verb} ended or begun anew and {_be(len(left))} left out. {rest}")
        return False

    def _ask_anew(self) -> None:
        self.review, self._typed = review(self.request, self.tui.state), ""
        self._required = self.review.typed
        self.draw()

    def other_key(self, event: events.Key) -> None:
        """Digits of the count, the option's key, or the answer's."""
        if event.key == "backspace":
            self._typed = self._typed[:-1]
        elif event.character and event.character.isdecimal() and self._required is not None:
            self._typed = (self._typed + event.character)[:9]
        elif self.request.option and event.key == self.request.option.key:
            self.request = self.request.flipped()
            self._ask_anew()
        else:
            super().other_key(event)
            return
        self.draw()

    def answer(self, n: int) -> None:
        """Confirm only what is on the screen, and only with the count typed where it must be."""
        if n == 0:
            super().answer(0)
            return
        if not self._look_again() or not self._something:
            return
        if self._required is not None and self._typed != str(self._required):
            self._typed = ""
            self.draw()
            self.remark(f"Type {self._required} first, then y")
            return
        self.final = self.request.only(self.review.ids)
        super().answer(n)


def _be(n: int) -> str:
    return "is" if n == 1 else "are"
