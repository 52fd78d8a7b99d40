"""`vf-tui demo`: a real run with nothing to configure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vf_tui.commands.run import (
    UNKNOWN_ARE_OVERRIDES,
    How,
    load_config,
    on_screen,
    print_config,
    run_config,
    run_options,
    split_config,
)
from vf_tui.commands.scripted import NOWHERE, serve

if TYPE_CHECKING:
    from vf_core.eval_config import EvalConfig
    from vf_tui.launch import Launched

TASKS = 8
"""Kinds of tasks that the bundled taskset has; more rollouts are more of each kind."""


@click.command("demo", context_settings=UNKNOWN_ARE_OVERRIDES, options_metavar="[OPTIONS]")
@run_options
@click.option(
    "-n",
    "--rollouts",
    type=click.IntRange(min=1),
    default=TASKS,
    show_default=True,
    help="How many rollouts in all.",
)
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(min=1),
    default=TASKS,
    show_default=True,
    help="How many at once.",
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[--a.b VALUE]...")
def demo_command(how: How, rollouts: int, concurrency: int, args: tuple[str, ...]) -> int:
    """A real run with nothing to configure: bundled tasks, a scripted model, local sandboxes.

    The model is a small server that answers by a script; everything else is as in any run. No key and no network
    are needed. The options of `vf-tui run` work here too.
    """
    path, overrides = split_config(args)
    if path is not None:
        raise click.UsageError(f"demo takes no config file (got {path}); `vf-tui run {path}` does")

    given = ["-n", str(rollouts), "-c", str(concurrency)]
    if how.draws and not overrides:
        # Nothing can be refused here: the screen comes first, and even the config is read behind it.
        return _behind_the_screen(given, how)
    config = _config([*given, *overrides])
    return print_config(config, how) if how.dry_run else run_config(config, how, serve)


def _config(overrides: list[str], *, quietly: bool = True) -> EvalConfig:
    from vf_core.scripted.scenario import DEMO, load_scenario

    given = ["--model", load_scenario(DEMO).model, "--env.taskset.id", "demo", "--client.base_url", NOWHERE]
    return load_config(None, [*given, *overrides], quietly=quietly)


def _behind_the_screen(given: list[str], how: How) -> int:
    from vf_core.link.base import Description

    def start() -> Launched:
        from vf_tui.launch import launch, new_run_dir

        config = _config(given, quietly=False)
        run_dir = new_run_dir(config)
        mode = "embedded" if how.embedded else "screen"
        return launch(serve(config, run_dir), run_dir, embedded=how.embedded, mode=mode)

    return on_screen(start, Description("socket", name="demo"), how)
