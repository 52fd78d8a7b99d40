"""Colour themes: TOML files with semantic colours, checked whole before Textual hears of them.

Shipped themes come with the package; the user's own lie in `themes/` of the config directory and win over a
shipped one of the same name. A theme names only the colours that it changes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, AliasChoices, Field, ValidationError
from textual.color import Color, ColorParseError
from textual.filter import Monochrome, NoColor
from textual.theme import BUILTIN_THEMES, Theme

from vf_core.config.base import StrictModel
from vf_core.config.explain import explain
from vf_core.config.load import load_toml
from vf_core.errors import ConfigError
from vf_tui.palette import COLOURS, variables
from vf_tui.theme_files import FALLBACK, shipped_dir, theme_problem, user_dir

if TYPE_CHECKING:
    from textual.app import App

WITHOUT_COLOUR = "ansi"


def _colour(value: str) -> str:
    try:
        colour = Color.parse(value)
    except ColorParseError:
        raise ValueError(f"{value!r} is not a colour (write #rrggbb, or a name such as ansi_red)") from None
    if colour.a != 1:
        raise ValueError(f"{value!r} is see-through: a terminal's colours are solid")
    return value


Colour = Annotated[str, AfterValidator(_colour)]


class Colours(StrictModel):
    """What a theme may set, by what it is for. None: as in the shipped dark or light theme."""

    background: Colour | None = None
    surface: Colour | None = None
    panel: Colour | None = None
    foreground: Colour | None = None
    muted: Colour | None = None
    faint: Colour | None = None
    line: Colour | None = None
    accent: Colour | None = None
    success: Colour | None = None
    warning: Colour | None = None
    error: Colour | None = None
    cursor: Colour | None = None


class ThemeFile(StrictModel):
    """A theme's TOML file. `ansi`: its colours are the terminal's own sixteen."""

    name: str = Field(min_length=1, max_length=40, pattern=r"^[a-z0-9][a-z0-9-]*$")
    dark: bool = True
    ansi: bool = False
    colours: Colours = Field(
        default_factory=Colours, validation_alias=AliasChoices("colours", "colors"), title="colours"
    )


@dataclass(slots=True)
class Themes:
    """The themes there are by name, where each comes from, and what was refused."""

    files: dict[str, ThemeFile] = field(default_factory=dict)
    sources: dict[str, Path] = field(default_factory=dict)
    problems: list[ConfigError] = field(default_factory=list)


def load_theme(file: Path) -> ThemeFile:
    """Read and check one theme; without a `name` it is called like the file. Raises `ConfigError`."""
    data = load_toml(file)
    data.setdefault("name", file.stem)
    try:
        return ThemeFile.model_validate(data)
    except ValidationError as e:
        raise explain(e, ThemeFile, file, data) from e


def load_themes(user: Path | None = None) -> Themes:
    """All themes; a bad file is reported in `problems` and passed over."""
    out = Themes()
    for directory in (shipped_dir(), user_dir() if user is None else user):
        for file in sorted(directory.glob("*.toml")):
            try:
                theme = load_theme(file)
            except ConfigError as e:
                out.problems.append(e)
                continue
            out.files[theme.name], out.sources[theme.name] = theme, file
    return out


def resolve(theme: ThemeFile, themes: Mapping[str, ThemeFile]) -> dict[str, str]:
    """All semantic colours of `theme`: its own, over the shipped dark or light theme's, over the defaults."""
    base = themes.get("dark" if theme.dark else "light")
    out = dict(COLOURS)
    for layer in (base, theme):
        if layer is not None:
            out |= layer.colours.model_dump(exclude_none=True)
    return out


def to_textual(theme: ThemeFile, themes: Mapping[str, ThemeFile]) -> Theme:
    """`theme` as Textual wants it; its semantic colours are the variables `vf-…`."""
    c = resolve(theme, themes)
    own: dict[str, str] = variables(c)
    if theme.ansi:
        # Textual's own style sheets name variables that only its ANSI themes set.
        own = BUILTIN_THEMES["ansi-dark" if theme.dark else "ansi-light"].variables | own
    else:
        own |= {
            "border": c["accent"], "border-blurred": c["line"],
            "block-cursor-background": c["cursor"], "block-cursor-foreground": c["foreground"],
            "block-cursor-text-style": "none",
            "block-cursor-blurred-background": c["panel"], "block-cursor-blurred-foreground": c["foreground"],
            "block-hover-background": c["panel"],
            "footer-background": c["background"], "footer-key-foreground": c["accent"],
            "footer-description-foreground": c["muted"], "footer-item-background": c["background"],
            "scrollbar": c["line"], "scrollbar-hover": c["faint"], "scrollbar-active": c["accent"],
            "scrollbar-background": c["background"], "scrollbar-background-hover": c["background"],
            "scrollbar-background-active": c["background"], "scrollbar-corner-color": c["background"],
            "input-selection-background": c["cursor"],
        }  # fmt: skip
    return Theme(
        name=theme.name, primary=c["accent"], secondary=c["muted"], accent=c["accent"],
        warning=c["warning"], error=c["error"], success=c["success"], foreground=c["foreground"],
        background=c["background"], surface=c["surface"], panel=c["panel"], dark=theme.dark, ansi=theme.ansi,
        variables=own,
    )  # fmt: skip


def variable_defaults() -> dict[str, str]:
    """For `App.get_theme_variable_defaults`: what a theme that is not ours lacks."""
    return variables(COLOURS)


def choose(wanted: str, environ: Mapping[str, str] | None = None) -> str:
    """The theme to use: without colour (`NO_COLOR`) the one that tells everything by weight and reversal."""
    environ = os.environ if environ is None else environ
    return WITHOUT_COLOUR if environ.get("NO_COLOR") else wanted


def install(app: App[Any], wanted: str, themes: Themes | None = None) -> list[str]:
    """Register all themes with `app` and switch to `wanted`; messages for the user about what was refused.

    May be called again after files changed: the theme in use is then drawn anew.
    """
    themes = load_themes() if themes is None else themes
    messages = [f"theme not loaded: {problem}" for problem in themes.problems]
    name = wanted
    if problem := theme_problem(wanted, themes.files):
        messages.append(f"{problem}; using {FALLBACK}")
        name = FALLBACK
    # A theme in use is not drawn anew when it is registered again: leave it first.
    app.theme = "textual-dark"
    for theme in themes.files.values():
        app.register_theme(to_textual(theme, themes.files))
    if name in themes.files:
        app.theme = name
    if app.no_color and app.native_ansi_color:
        # Chosen before there was a theme: shades of grey, where the terminal's own colours are wanted.
        app._filters[:] = [NoColor() if isinstance(f, Monochrome) else f for f in app._filters]
    return messages
