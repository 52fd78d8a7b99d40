"""Commands that print how the app is set up: `config`, `keys`, `themes`."""

from __future__ import annotations

import click

from vf_core.config.paths import config_dir, state_dir
from vf_tui.cli import OK
from vf_tui.commands.console import emit, log_file, notice, say
from vf_tui.commands.facts import JSON, table


@click.command("config")
@JSON
def config_command(as_json: bool) -> int:
    """Print the settings and where each comes from."""
    from vf_core.config.settings import load_settings_and_sources, settings_file

    settings, sources = load_settings_and_sources()
    places = {
        "settings": str(settings_file()),
        "keys": str(config_dir() / "keys.toml"),
        "themes": str(config_dir() / "themes"),
        "state": str(state_dir()),
        "log": str(log_file()),
    }
    values = settings.model_dump()
    _warn_of_theme(settings.theme, sources["theme"])
    if as_json:
        told = {name: {"value": value, "source": sources[name]} for name, value in values.items()}
        emit({"settings": told, "places": places})
        return OK
    rows = [(name, _shown(value), sources[name]) for name, value in values.items()]
    for line in table([("SETTING", "VALUE", "FROM"), *rows]):
        say(line)
    say()
    for line in table(list(places.items())):
        say(line)
    return OK


def _warn_of_theme(name: str, source: str) -> None:
    from vf_tui.theme_files import FALLBACK, theme_names, theme_problem

    if problem := theme_problem(name, theme_names()):
        notice(f"warning: {source}: {problem}; {FALLBACK} is used")


def _shown(value: object) -> str:
    if value is None:
        return "auto"
    return str(value).lower() if isinstance(value, bool) else str(value)


@click.command("keys")
@JSON
def keys_command(as_json: bool) -> int:
    """Print the keys and what they do; `keys.toml` in the config directory changes them by their ids."""
    from vf_tui.actions import ACTIONS
    from vf_tui.keymap import load_keymap

    file = config_dir() / "keys.toml"
    keymap = load_keymap(file)
    if as_json:
        emit(
            [
                {
                    "id": action.id,
                    "keys": list(keymap.of(action)),
                    "label": action.label,
                    "screens": sorted(action.scopes),
                    "remapped": action.id in keymap.remapped,
                }
                for action in ACTIONS
            ]
        )
        return OK
    rows = [("KEYS", "ID", "DOES")]
    for action in ACTIONS:
        moved = " (remapped)" if action.id in keymap.remapped else ""
        rows.append((keymap.label(action), action.id, f"{action.label}{moved}"))
    for line in table(rows):
        say(line)
    return OK


@click.command("themes")
@JSON
def themes_command(as_json: bool) -> int:
    """List the colour themes and where each comes from."""
    from vf_core.config.settings import load_settings_and_sources
    from vf_tui.theme import load_themes
    from vf_tui.theme_files import FALLBACK

    settings, sources = load_settings_and_sources()
    current = settings.theme
    themes = load_themes()
    _warn_of_theme(current, sources["theme"])
    current = current if current in themes.files else FALLBACK
    for problem in themes.problems:
        notice(f"warning: theme not loaded: {problem}")
    if as_json:
        emit(
            [
                {
                    "name": name,
                    "dark": theme.dark,
                    "current": name == current,
                    "file": str(themes.sources[name]),
                }
                for name, theme in themes.files.items()
            ]
        )
        return OK
    rows = [("", "THEME", "FROM")]
    rows += [("*" if name == current else "", name, str(themes.sources[name])) for name in themes.files]
    for line in table(rows):
        say(line)
    return OK
