"""Themes: the shipped ones are whole and readable, a bad one is a message and not a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.color import ColorSystem
from textual.app import App
from textual.color import Color

from vf_core.errors import ConfigError
from vf_tui import theme
from vf_tui.palette import ANSI_STYLES, COLOURS, STATES, STYLES, Palette

SHIPPED = ("dark", "light", "high-contrast", "colour-blind", "ansi")


class Bare(App[None]):
    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.variable_defaults()


def luminance(colour: Color) -> float:
    def channel(value: int) -> float:
        share = value / 255
        return float(share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4)

    return 0.2126 * channel(colour.r) + 0.7152 * channel(colour.g) + 0.0722 * channel(colour.b)


def contrast(a: str, b: str) -> float:
    first, second = sorted((luminance(Color.parse(a)), luminance(Color.parse(b))))
    return (second + 0.05) / (first + 0.05)


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_shipped_themes_load(tmp_path: Path) -> None:
    themes = theme.load_themes(tmp_path)
    assert not themes.problems
    assert set(themes.files) == set(SHIPPED)


@pytest.mark.parametrize("name", ["dark", "light", "high-contrast", "colour-blind"])
def test_the_shipped_themes_can_be_read(name: str, tmp_path: Path) -> None:
    themes = theme.load_themes(tmp_path)
    c = theme.resolve(themes.files[name], themes.files)
    least = {
        "foreground": 9.0,
        "muted": 5.0,
        "faint": 3.4,
        "success": 4.5,
        "warning": 4.5,
        "error": 4.5,
        "accent": 4.5,
    }
    for key, ratio in least.items():
        assert contrast(c[key], c["background"]) >= ratio, key
    for under in ("cursor", "panel"):
        assert contrast(c["foreground"], c[under]) >= 7, under
        assert contrast(c["muted"], c[under]) >= 3.4, under


async def test_every_shipped_theme_can_be_put_on(tmp_path: Path) -> None:
    app = Bare()
    async with app.run_test():
        themes = theme.load_themes(tmp_path)
        for name in SHIPPED:
            assert theme.install(app, name, themes) == []
            assert app.theme == name
            assert app.theme_variables["vf-accent"]


def test_every_style_is_made_of_known_colours() -> None:
    for ansi in (False, True):
        palette = Palette({}, Color.parse("#101010"), ansi=ansi)
        for name in (*STYLES, *ANSI_STYLES):
            for state in ("", *STATES):
                palette.style(f"{name}@{state}" if state else name)


def test_output_colours_cannot_do_more_than_colour() -> None:
    palette = Palette({}, Color.parse("#101010"))
    style = palette.style("sgr:31;1;5;8")
    assert style.bold
    assert not style.blink
    assert not style.conceal
    assert "31" in style.render("x", color_system=ColorSystem.STANDARD)
    assert palette.style("sgr:999;nonsense") is not None
    assert palette.style("no such style") is not None


def test_a_user_theme_needs_only_what_it_changes(tmp_path: Path) -> None:
    write(tmp_path, "mine", '[colours]\naccent = "#ff00ff"\n')
    themes = theme.load_themes(tmp_path)
    got = theme.resolve(themes.files["mine"], themes.files)
    assert got["accent"] == "#ff00ff"
    assert got["background"] == theme.resolve(themes.files["dark"], themes.files)["background"]
    assert set(got) == set(COLOURS)


def test_a_user_theme_wins_over_a_shipped_one(tmp_path: Path) -> None:
    write(tmp_path, "dark", '[colors]\naccent = "#00ff00"\n')
    assert theme.load_themes(tmp_path).files["dark"].colours.accent == "#00ff00"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[colours]\nacent = "#ffffff"\n', ["acent", "accent"]),
        ('[colours]\naccent = "blurple"\n', ["accent", "blurple", "not a colour"]),
        ('[colours]\naccent = "#ff000080"\n', ["see-through"]),
        ("dark = 3\n", ["dark"]),
        ("[colours\n", ["bad"]),
        ('name = "../etc"\n', ["name"]),
    ],
)
async def test_a_bad_theme_is_a_message_and_the_fallback(text: str, words: list[str], tmp_path: Path) -> None:
    file = write(tmp_path, "bad", text)
    with pytest.raises(ConfigError) as refused:
        theme.load_theme(file)
    for word in words:
        assert word in str(refused.value)
    app = Bare()
    async with app.run_test():
        messages = theme.install(app, "bad", theme.load_themes(tmp_path))
        assert app.theme == theme.FALLBACK
        assert len(messages) == 2
        assert "bad.toml" in messages[0]
        assert "no theme 'bad'" in messages[1]


async def test_a_changed_file_is_picked_up_while_in_use(tmp_path: Path) -> None:
    write(tmp_path, "mine", '[colours]\naccent = "#111111"\n')
    app = Bare()
    async with app.run_test() as pilot:
        theme.install(app, "mine", theme.load_themes(tmp_path))
        await pilot.pause()
        write(tmp_path, "mine", '[colours]\naccent = "#222222"\n')
        theme.install(app, "mine", theme.load_themes(tmp_path))
        await pilot.pause()
        assert app.theme_variables["vf-accent"] == "#222222"


def test_no_colour_asks_for_the_terminals_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert theme.choose("dark", {"NO_COLOR": "1"}) == "ansi"
    assert theme.choose("dark", {"NO_COLOR": ""}) == "dark"
    assert theme.choose("light", {}) == "light"
