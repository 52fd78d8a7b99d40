"""The options of commands that draw, and drawing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from vf_core.link.base import Link


def screen_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--slow`, `--no-mouse` and `--theme`; they arrive as one dict `screen`."""

    @functools.wraps(command)
    def with_screen(slow: bool, no_mouse: bool, theme: str | None, **rest: Any) -> Any:
        return command(screen={"slow": slow, "no_mouse": no_mouse, "theme": theme}, **rest)

    for option in (
        click.option("--theme", metavar="NAME", help="A colour theme; `vf-tui themes` lists them."),
        click.option("--no-mouse", is_flag=True, help="Leave the mouse to the terminal."),
        click.option("--slow", is_flag=True, help="At most 4 repaints a second, as over SSH."),
    ):
        with_screen = option(with_screen)
    return with_screen


def show(
    link: Link | None,
    *,
    read_only: bool = False,
    embedded: bool = False,
    slow: bool = False,
    no_mouse: bool = False,
    theme: str | None = None,
) -> int:
    """Draw the run behind `link`, or the home screen, until the user leaves; the exit code."""
    from vf_core.config.settings import load_settings
    from vf_tui.commands.console import silence_notices

    changes: dict[str, Any] = {"slow": True} if slow else {}
    if no_mouse:
        changes["mouse"] = False
    if theme is not None:
        changes["theme"] = theme
    settings = load_settings().model_copy(update=changes)
    silence_notices()
    from vf_tui.run_app import run_app

    return run_app(link, settings=settings, read_only=read_only, embedded=embedded)
