"""`vf-tui demo`: a real run with nothing to configure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vf_tui.commands.run import (
    UNKNOWN_ARE_OVERRIDES,
    How,
    load_config,
    print_config,
    run_config,
    run_options,
    split_config,
)

if TYPE_CHECKING:
    from vf_core.eval_config import EvalConfig

NOWHERE = "http://127.0.0.1:1/v1"
"""Stands for the scripted model's address until it is up."""

TASKS = 8
"""Tasks that the bundled taskset has."""


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

    from vf_core.scripted.scenario import DEMO, load_scenario

    given = ["--model", load_scenario(DEMO).model, "--env.taskset.id", "demo", "--client.base_url", NOWHERE]
    given += ["-c", str(concurrency), *_size(rollouts)]
    config = load_config(None, [*given, *overrides])
    if how.dry_run:
        return print_config(config, how)
    return _run(config, how)


def _run(config: EvalConfig, how: How) -> int:
    from vf_tui.demo_model import start_model
    from vf_tui.launch import new_run_dir

    run_dir = new_run_dir(config)
    if config.client.base_url == NOWHERE:
        client = config.client.model_copy(update={"base_url": start_model(run_dir.path)})
        config = config.model_copy(update={"client": client})
    return run_config(config, how, run_dir=run_dir)


def _size(rollouts: int) -> list[str]:
    """Options for at least `rollouts` rollouts: some of the tasks, or each of them as often as it takes."""
    if rollouts <= TASKS:
        return ["-n", str(rollouts)]
    return ["-r", str(-(-rollouts // TASKS))]
