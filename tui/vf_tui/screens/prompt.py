"""The line in which a filter or a search is typed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from vf_tui.safe_text import title


class Prompt(Horizontal):
    """`/` and an input; hidden until `ask`ed. Enter keeps what was typed, escape what was there before.

    `check` says what is wrong with a text ("" when nothing is); it is shown beside the input.
    """

    DEFAULT_CSS = """
    Prompt { height: 1; }
    Prompt > .sign { width: auto; }
    Prompt > Input { width: 1fr; }
    Prompt > .error { width: auto; max-width: 60%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel", show=False, id="prompt.cancel")
    ]

    @dataclass
    class Changed(Message):
        """The text is another, and a good one."""

        text: str
        source: Prompt

        @property
        def control(self) -> Prompt:
            """Where it comes from."""
            return self.source

    @dataclass
    class Closed(Message):
        """The prompt is done with; `kept`: the text stands, else the one from before does."""

        text: str
        kept: bool
        source: Prompt

        @property
        def control(self) -> Prompt:
            """Where it comes from."""
            return self.source

    def __init__(self, check: Callable[[str], str] = lambda _: "", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._check = check
        self._before = ""
        self.display = False

    def compose(self) -> ComposeResult:
        """Sign, input, complaint."""
        yield Static("/", classes="sign", markup=False)
        yield Input(compact=True, select_on_focus=False)
        yield Static("", classes="error", markup=False)

    @property
    def is_open(self) -> bool:
        """It is being typed into."""
        return self.display

    def ask(self, text: str) -> None:
        """Open with `text`, which is also what escape brings back."""
        self._before = text
        self.display = True
        field = self.query_one(Input)
        field.value = text
        field.cursor_position = len(text)
        # At once, so that what is typed ahead lands here.
        self.screen.set_focus(field)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Tell a good text, complain about a bad one."""
        event.stop()
        problem = self._check(event.value)
        self.query_one(".error", Static).update(title(problem, 200))
        if not problem and self.is_open:
            self.post_message(self.Changed(event.value, self))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the text, unless it is a bad one."""
        event.stop()
        if not self._check(event.value):
            self._close(event.value, kept=True)

    def action_cancel(self) -> None:
        """Bring the text from before back."""
        self._close(self._before, kept=False)

    def _close(self, text: str, *, kept: bool) -> None:
        self.display = False
        self.post_message(self.Closed(text, kept, self))
