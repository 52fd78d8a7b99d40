"""`vf-tui init`: a package of your own that works from the start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vf_tui.cli import OK
from vf_tui.commands.console import say

if TYPE_CHECKING:
    from vf_core.plugins import Kind


@click.command("init")
@click.argument("name")
@click.option("--taskset", is_flag=True, help="With a taskset (the default when no kind is given).")
@click.option("--harness", is_flag=True, help="With a harness.")
@click.option("--judge", is_flag=True, help="With a judge.")
@click.option(
    "--dir",
    "parent",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Where to make the directory NAME (default: here).",
)
def init_command(name: str, taskset: bool, harness: bool, judge: bool, parent: Path) -> int:
    """Make a package of your own: a taskset, a harness, a judge.

    It is made as the directory NAME: modules, tests that pass, an eval that runs.
    """
    from vf_tui.scaffold import make_package, module_names

    wanted: list[Kind] = ["taskset"] if taskset or not (harness or judge) else []
    wanted += ["harness"] if harness else []
    wanted += ["judge"] if judge else []
    made = make_package(name, wanted, parent)
    modules = module_names(name, wanted)
    for kind, module in modules.items():
        say(f"{kind} {module}: {made / module / '__init__.py'}")
    say()
    say("next:")
    say(f"  cd {made}")
    say("  pip install -e '.[test]'    # into the environment that vf-tui is in")
    say("  pytest")
    say(f"  vf-tui plugins {' '.join(modules.values())}")
    say("  vf-tui run eval.toml --scripted scenario.toml")
    return OK
