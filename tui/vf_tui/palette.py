"""From style names to what the terminal is told: the semantic colours of a theme, and the styles made of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rich.ansi import AnsiDecoder
from rich.style import Style
from textual.color import Color, ColorParseError

COLOURS: dict[str, str] = {
    "background": "#101418",
    "surface": "#151a20",
    "panel": "#1c232b",
    "foreground": "#d8dee6",
    "muted": "#8b96a5",
    "faint": "#5c6773",
    "line": "#2f3945",
    "accent": "#5fb3d4",
    "success": "#7fb77e",
    "warning": "#dcae5a",
    "error": "#e0706d",
    "cursor": "#24384a",
}
"""The semantic colours and their defaults (the dark theme's)."""

STYLES: dict[str, str] = {
    "": "foreground",
    "text": "foreground",
    "dim": "muted",
    "faint": "faint",
    "strong": "bold foreground",
    "title": "bold foreground",
    "accent": "accent",
    "tab": "muted",
    "tab_on": "bold background on accent",
    "key": "bold accent",
    "key_off": "faint",
    "head": "faint",
    "group": "bold muted",
    "rule": "line",
    "frame": "line",
    "frame_focus": "accent",
    "frame_alarm": "faint",
    "mark": "bold accent",
    "run": "muted",
    "model": "muted",
    "tool": "foreground",
    "ok": "success",
    "gone": "success",
    "warn": "warning",
    "error": "error",
    "alarm": "bold background on error",
    "thought": "italic muted",
    "stderr": "warning",
    "time": "faint",
    "match": "background on warning",
    "match_now": "bold background on accent",
    "new": "bold background on accent",
    "bar_done": "success",
    "bar_bad": "error",
    "bar_active": "accent",
    "bar_left": "line",
    "phase_a": "foreground on line",
    "phase_b": "muted on panel",
    "phase_c": "accent on cursor",
    "phase_d": "muted on surface",
    "notice": "foreground on panel",
    "notice_warn": "warning on panel",
    "notice_error": "bold error on panel",
    "track": "line",
    "thumb": "faint",
}
"""Style names as attributes and colours, `on` before a background."""

ANSI_STYLES: dict[str, str] = {
    "dim": "dim foreground",
    "run": "dim foreground",
    "model": "dim foreground",
    "group": "bold",
    "thought": "italic dim",
    "alarm": "bold reverse error",
    "match": "reverse warning",
    "match_now": "bold reverse accent",
    "new": "bold reverse accent",
    "phase_a": "underline",
    "phase_b": "dim",
    "phase_c": "reverse",
    "phase_d": "dim underline",
    "notice": "bold",
    "notice_warn": "bold warning",
    "notice_error": "bold reverse error",
}
"""Styles that differ in a theme of terminal colours, where there is no shade between two colours."""

STATES: dict[str, str] = {"cursor": "on cursor", "blur": "on panel", "bar": "on panel"}
"""What stands after an `@`: put over a style. In a theme of terminal colours a cursor is reversed instead."""

_ATTRIBUTES = frozenset({"bold", "dim", "italic", "underline", "reverse", "strike"})


def variables(colours: Mapping[str, str]) -> dict[str, str]:
    """Theme variables (`vf-accent`, …) for `colours`."""
    return {f"vf-{name}": value for name, value in colours.items()}


@lru_cache(maxsize=256)
def _sgr(codes: str) -> Style:
    """The Rich style that SGR parameters ask for; Style.null() when they ask for nothing that is known."""
    text = next(iter(AnsiDecoder().decode(f"\x1b[{codes}mx\x1b[0m")), None)
    if text is None or not text.spans or not isinstance(text.spans[0].style, Style):
        return Style.null()
    style = text.spans[0].style
    # A blinking or concealed text is no help to a reader.
    return style + Style(blink=False, blink2=False, conceal=False)


class Palette:
    """Styles of one widget: looked up by name, made once, from a theme's variables and a background."""

    def __init__(
        self, theme: Mapping[str, str], background: Color, *, ansi: bool = False, colourless: bool = False
    ) -> None:
        self.ansi, self.colourless = ansi, colourless
        self.background = background
        self._colours = {name: _colour(theme.get(f"vf-{name}"), value) for name, value in COLOURS.items()}
        self._cache: dict[str, Style] = {}
        self._faint = self._colours["faint"].rich_color
        self._base = Style(bgcolor=background.rich_color) if background.a else Style.null()

    def style(self, name: str) -> Style:
        """The Rich style for `name`; unknown names are drawn as text."""
        got = self._cache.get(name)
        if got is None:
            if len(self._cache) > 512:
                self._cache.clear()
            got = self._cache[name] = self._make(name)
        return got

    def _make(self, name: str) -> Style:
        name, _, state = name.partition("@")
        style = self._base + self._parse(STYLES[""])
        if name.startswith("sgr:"):
            style += _sgr(name[4:])
        else:
            spec = ANSI_STYLES.get(name) if self.ansi else None
            style += self._parse(STYLES.get(name, "") if spec is None else spec)
            if self.colourless and style.color == self._faint:
                style += Style(dim=True)
        if state:
            if self.ansi:
                style += Style(reverse=True) if state == "cursor" else Style.null()
            elif style.bgcolor == self._base.bgcolor:
                style += self._parse(STATES.get(state, ""))
        return style

    def _parse(self, spec: str) -> Style:
        out = Style.null()
        ground = False
        for word in spec.split():
            if word == "on":
                ground = True
            elif word in _ATTRIBUTES:
                out += Style.parse(word)
            else:
                colour = self._colours[word].rich_color
                out += Style(bgcolor=colour) if ground else Style(color=colour)
        return out


def _colour(value: str | None, fallback: str) -> Color:
    try:
        return Color.parse(value or fallback)
    except ColorParseError:
        return Color.parse(fallback)
