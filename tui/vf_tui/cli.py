"""The command line: which commands there are, and how every one of them ends.

Nothing but click is imported before a command is chosen: `vf-tui --help` must answer at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from vf_core import __version__

OK, INTERNAL, USAGE, ERRORS, UNCONFIRMED, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
"""Exit codes: all well, internal error, usage or config, more rollouts errored than allowed, sandboxes left
unconfirmed, provider unreachable, interrupted."""

EPILOG = (
    "Exit codes: 0 all well, 1 internal error, 2 usage or config, 3 more rollouts errored than --max-errors, "
    "4 sandboxes left unconfirmed, 5 provider unreachable, 130 interrupted."
)

# Name, module under vf_tui.commands, and the line that `--help` shows without importing it.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "Start a run and watch it."),
    "resume": ("resume", "Take up a run whose engine is gone."),
    "demo": ("demo", "A real run with nothing to configure: bundled tasks, a scripted model."),
    "attach": ("view", "Watch a run that is live."),
    "open": ("view", "Look at any run directory, also one written by verifiers."),
    "ls": ("facts", "List runs, live ones first."),
    "show": ("facts", "Show a run, or one of its rollouts."),
    "events": ("facts", "Print a run's journal."),
    "stop": ("act", "Stop rollouts gracefully, or with `all` the run."),
    "restart": ("act", "Start rollouts again, each in a new sandbox once the old is gone."),
    "pause": ("act", "Launch nothing new until unpaused; what runs goes on."),
    "unpause": ("act", "Launch again."),
    "sandboxes": ("sandboxes", "List all sandboxes: what exists, and what is left of dead runs."),
    "cleanup": ("cleanup", "Delete what dead runs left, with proof."),
    "plugins": ("plugins", "List tasksets, harnesses and judges, and what is broken and why."),
    "init": ("init", "Make a package of your own: a taskset, a harness, a judge."),
    "doctor": ("doctor", "Check what this machine can do."),
    "config": ("about", "Print the settings and where each comes from."),
    "keys": ("about", "Print the keys and what they do."),
    "themes": ("about", "List the colour themes."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order in which a user meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; None when there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"vf_tui.commands.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with; an unknown one is refused with the nearest."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else "`vf-tui --help` lists them"
            raise click.UsageError(f"there is no command {args[0]!r} ({hint})", ctx)
        return super().resolve_command(ctx, args)


@click.command(
    cls=LazyGroup,
    invoke_without_command=True,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", "-V", message="vf-tui %(version)s")
@click.option("--slow", is_flag=True, help="Home screen: at most 4 repaints a second, as over SSH.")
@click.option("--no-mouse", is_flag=True, help="Home screen: leave the mouse to the terminal.")
@click.option("--theme", metavar="NAME", help="Home screen: a colour theme.")
@click.pass_context
def cli(ctx: click.Context, slow: bool, no_mouse: bool, theme: str | None) -> int | None:
    """Launch and watch LLM-agent evaluation rollouts. Without a command: the home screen."""
    from vf_tui.commands.console import log_to_file

    log_to_file()
    if ctx.invoked_subcommand is None:
        from vf_tui.commands.view import home

        return home(slow=slow, no_mouse=no_mouse, theme=theme)
    if slow or no_mouse or theme:
        given = "--slow" if slow else "--no-mouse" if no_mouse else "--theme"
        raise click.UsageError(
            f"{given} goes behind the command: vf-tui {ctx.invoked_subcommand} {given}", ctx
        )
    return None


def main(argv: Sequence[str] | None = None) -> None:
    """The console script: runs the command line and ends the process with its exit code."""
    code = run(argv)
    if "vf_core.plugins" in sys.modules:
        # Threads of a plugin may not end.
        from vf_core.link.loop import end_process_soon

        end_process_soon(code)
    sys.exit(code)


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command line; its exit code. Nothing is raised: what goes wrong is told in one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that can't show a character gets a mark for it, not a crash.
        getattr(stream, "reconfigure", lambda **_: None)(errors="replace")
    try:
        # click gives what a command returned, or an exit code that it was left with.
        code = cli.main(list(argv) if argv is not None else None, prog_name="vf-tui", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except BaseException as e:
        return _failed(e)


def _failed(error: BaseException) -> int:
    """Tell what went wrong; the exit code that it means."""
    from vf_tui.commands.failure import tell

    return tell(error)


if __name__ == "__main__":
    main()
