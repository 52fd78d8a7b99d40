"""Sending frames in as few bytes as they need.

Textual sends a changed span from the left edge of its widget, and every run of text with all of its colours
and a reset. Here a span is sent from where it begins, and of a style only what differs from the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate

if TYPE_CHECKING:
    from rich.console import RenderableType
    from textual.app import App
    from textual.screen import Screen

    _Base = App[Any]
else:
    _Base = object

# SGR codes by Rich's attribute names, each with the code that ends it.
_ATTRIBUTES = (
    ("bold", "1", "22"), ("dim", "2", "22"), ("italic", "3", "23"), ("underline", "4", "24"),
    ("blink", "5", "25"), ("reverse", "7", "27"), ("strike", "9", "29"), ("overline", "53", "55"),
)  # fmt: skip
_PLAIN = ("39", "49", frozenset[str]())

_Look = tuple[str, str, frozenset[str]]


@lru_cache(maxsize=4096)
def look(style: Style, system: ColorSystem) -> _Look:
    """A style as (foreground code, background code, attributes)."""
    foreground = style.color
    background = style.bgcolor
    return (
        ";".join(foreground.downgrade(system).get_ansi_codes()) if foreground is not None else "39",
        ";".join(background.downgrade(system).get_ansi_codes(foreground=False)) if background else "49",
        frozenset(name for name, _, _ in _ATTRIBUTES if getattr(style, name)),
    )


@lru_cache(maxsize=16384)
def transition(old: _Look, new: _Look) -> str:
    """What changes the terminal from style `old` to `new`."""
    codes: list[str] = []
    ended = old[2] - new[2]
    begun = set(new[2] - old[2])
    if ended:
        codes += sorted({off for name, _, off in _ATTRIBUTES if name in ended})
        if ended & {"bold", "dim"}:
            begun |= new[2] & {"bold", "dim"}
    codes += [on for name, on, _ in _ATTRIBUTES if name in begun]
    if new[0] != old[0]:
        codes.append(new[0])
    if new[1] != old[1]:
        codes.append(new[1])
    return f"\x1b[{';'.join(codes)}m" if codes else ""


class Encoder:
    """Turns segments into what the terminal is sent, within one frame."""

    def __init__(self, system: ColorSystem) -> None:
        self.system = system
        self.out: list[str] = []
        self._now: _Look = _PLAIN

    def move(self, x: int, y: int) -> None:
        """Put the cursor at a cell, counted from 0."""
        self.out.append(f"\x1b[{y + 1};{x + 1}H")

    def write(self, segments: Iterable[Segment]) -> None:
        """Send text in its styles."""
        for text, style, control in segments:
            if control or not text:
                continue
            self._style(_PLAIN if style is None else look(style, self.system))
            if style is not None and style.link:
                self.out.append(f"\x1b]8;id={style.link_id};{style.link}\x1b\\{text}\x1b]8;;\x1b\\")
            else:
                self.out.append(text)

    def _style(self, new: _Look) -> None:
        if new is not self._now:
            self.out.append(transition(self._now, new))
            self._now = new

    def finish(self) -> str:
        """The frame; the terminal is left in its plain style."""
        if self._now != _PLAIN:
            self.out.append("\x1b[0m")
        return "".join(self.out)


class TightUpdate(CompositorUpdate):
    """Changed spans, each sent from its first cell to its last."""

    def __init__(self, update: ChopsUpdate) -> None:
        self.update = update

    def render_segments(self, console: Console) -> str:
        """See `CompositorUpdate`."""
        encoder = Encoder(console._color_system or ColorSystem.TRUECOLOR)
        chops, ends = self.update.chops, self.update.chop_ends
        for y, x1, x2 in self.update.spans:
            at = -1
            for end, (x, strip) in zip(ends[y], chops[y].items(), strict=False):
                if strip is None or x >= x2 or end <= x1:
                    continue
                start, stop = max(x, x1), min(end, x2)
                if start != at:
                    encoder.move(start, y)
                at = stop
                encoder.write(strip.crop(start - x, stop - x))
        return encoder.finish()


class TightLayout(CompositorUpdate):
    """A whole screen, styles sent once each."""

    def __init__(self, update: LayoutUpdate) -> None:
        self.update = update

    def render_segments(self, console: Console) -> str:
        """See `CompositorUpdate`."""
        encoder = Encoder(console._color_system or ColorSystem.TRUECOLOR)
        region = self.update.region
        for y, line in enumerate(self.update.strips, region.y):
            encoder.move(region.x, y)
            for strip in line:
                if strip is not None:
                    encoder.write(strip)
        return encoder.finish()


def tighten(update: Any) -> Any:
    """`update` in its tight form; anything unknown as it is."""
    if type(update) is ChopsUpdate:
        return TightUpdate(update)
    if type(update) is LayoutUpdate:
        return TightLayout(update)
    return update


class TightDisplay(_Base):
    """Mixin for an `App` (before it in the bases): every frame goes out in its tight form."""

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        super()._display(screen, tighten(renderable))
