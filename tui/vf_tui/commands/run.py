"""`vf-tui run`: from a config file and options to a run that is watched, or left to itself."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vf_tui.cli import INTERNAL, INTERRUPTED, OK
from vf_tui.commands.console import apart, emit, log_debug, notice, plain_reason, quiet, say, say_file
from vf_tui.commands.screen import screen_options
from vf_tui.commands.scripted import is_config, scripted_option, with_scripted

if TYPE_CHECKING:
    from vf_core.eval_config import EvalConfig
    from vf_core.events.state import RunState
    from vf_core.link.base import Description
    from vf_core.runs.layout import RunDir
    from vf_tui.launch import Launched

UNKNOWN_ARE_OVERRIDES = {"ignore_unknown_options": True, "help_option_names": ["-h", "--help"]}


@dataclass(frozen=True, slots=True)
class How:
    """How a run is started and watched."""

    detach: bool = False
    headless: bool = False
    embedded: bool = False
    dry_run: bool = False
    json: bool = False
    screen: dict[str, Any] | None = None

    @property
    def draws(self) -> bool:
        """It is watched on a screen."""
        return not (self.detach or self.headless or self.json or self.dry_run or plain_reason())

    def check(self) -> None:
        """Refuse what contradicts itself."""
        if self.detach and (self.headless or self.embedded):
            other = "--headless" if self.headless else "--embedded"
            raise click.UsageError(f"--detach and {other} exclude each other: a detached run is not watched")


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how a run is started; they arrive as one `How`."""
    import functools

    @functools.wraps(command)
    def with_how(
        *,
        detach: bool,
        headless: bool,
        embedded: bool,
        dry_run: bool,
        as_json: bool,
        no_push: bool,
        verbose: bool,
        screen: dict[str, Any],
        **rest: Any,
    ) -> Any:
        how = How(detach, headless, embedded, dry_run, as_json, screen)
        how.check()
        if verbose:
            log_debug(stderr=not how.draws)
        return command(how=how, **rest)

    out: Callable[..., Any] = with_how
    for option in (
        click.option(
            "--no-push", is_flag=True, help="Accepted for verifiers' sake: nothing is ever uploaded."
        ),
        click.option(
            "--verbose", is_flag=True, help="Debug lines too, in the logs and without a screen on stderr."
        ),
        click.option(
            "--json",
            "as_json",
            is_flag=True,
            help="Print JSON lines: a launch record first, a done record last.",
        ),
        click.option(
            "--dry-run",
            is_flag=True,
            help="Check everything, print the resolved config (`resume`: what is kept and owed), start nothing.",
        ),
        click.option(
            "--embedded", is_flag=True, help="Run the engine inside this process; the run ends with it."
        ),
        click.option("--headless", is_flag=True, help="No screen: print lines until the run is over."),
        click.option("--detach", is_flag=True, help="Start the run and return; `vf-tui attach` shows it."),
        screen_options,
    ):
        out = option(out)
    return out


@click.command("run", context_settings=UNKNOWN_ARE_OVERRIDES, options_metavar="[OPTIONS]")
@run_options
@scripted_option
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[@] CONFIG [--a.b VALUE]...")
def run_command(how: How, scripted: str | None, args: tuple[str, ...]) -> int:
    """Start a run and watch it.

    CONFIG is a TOML file; `@ CONFIG` is the same. Every setting in it can be given as an option: `--model X`,
    `--sampling.temperature 0.5`, `--env.agent.max-turns=20`, `--max-errors 3`, `-n 5` (tasks), `-r 2` (rollouts per
    task), `-c 16` (at once), `-m`, `-o`.

    The run goes on when the screen is closed; ctrl+c in --headless ends it.
    """
    path, overrides = split_config(args)
    if path is None and scripted and is_config(scripted):
        path, scripted = Path(scripted), ""
    if path is None and not overrides:
        raise click.UsageError("a config file is missing: vf-tui run CONFIG", click.get_current_context())
    prepare: Prepare | None = None
    config = load_config(path, overrides)
    if scripted is not None:
        config, prepare = with_scripted(config, scripted)
    if how.dry_run:
        return print_config(config, how)
    from vf_tui.commands.preflight import require_key

    require_key(config)
    return run_config(config, how, prepare)


def split_config(args: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The config file among `args` (`@ FILE`, `@FILE` or a bare path) and the other arguments."""
    files, rest = split_files(args)
    if len(files) > 1:
        raise click.UsageError(f"one config file, not {len(files)}: {', '.join(files)}")
    return (Path(files[0]) if files else None), rest


def split_files(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """What in `args` is no option, and the options with their values."""
    files: list[str] = []
    rest: list[str] = []
    todo = list(args)
    while todo:
        arg = todo.pop(0)
        if arg == "@":
            if not todo:
                raise click.UsageError("a config file is missing after @")
            files.append(todo.pop(0))
        elif arg.startswith("@"):
            files.append(arg[1:])
        elif arg.startswith("-"):
            rest.append(arg)
            # The value goes with its option; one that begins with a dash is an option unless it is a number.
            if "=" not in arg and todo and not _is_option(todo[0]) and not todo[0].startswith("@"):
                rest.append(todo.pop(0))
        else:
            files.append(arg)
    return files, rest


def _is_option(arg: str) -> bool:
    return arg.startswith("-") and not arg[1:2].isdigit() and arg[1:2] not in ("", ".")


def load_config(path: Path | None, overrides: Sequence[str], *, quietly: bool = True) -> EvalConfig:
    """Read and check a config; `quietly`: what plugins print meanwhile goes to the log."""
    from vf_core.engine.plan import make_harness
    from vf_core.eval_config import EvalConfig

    with quiet() if quietly else contextlib.nullcontext():
        config = EvalConfig.load(path, overrides)
        make_harness(config)
    return config


def print_config(config: EvalConfig, how: How) -> int:
    """`--dry-run`: the resolved config, which can be run; nothing was started."""
    from vf_tui.commands.preflight import count_rollouts, describe_rollouts, missing_key

    rollouts = count_rollouts(config)
    if how.json:
        emit({"type": "dry-run", "rollouts": rollouts, "config": config.public_dict()})
    else:
        say_file(config.to_toml().rstrip("\n"))
        if rollouts is not None:
            notice(describe_rollouts(config, rollouts))
    if reason := missing_key(config):
        notice(f"warning: {reason}")
    return OK


Prepare = Callable[["EvalConfig", "RunDir"], "EvalConfig"]
"""What is still to be done to a config once its run directory is there."""


def run_config(
    config: EvalConfig,
    how: How,
    prepare: Prepare | None = None,
    *,
    run_dir: RunDir | None = None,
    before: RunState | None = None,
) -> int:
    """Start a run of `config`, or take up the one in `run_dir` that was left as `before`, and watch it; the exit
    code."""
    from vf_core.link.base import Description
    from vf_tui.launch import launch, new_run_dir

    reason = "" if how.headless or how.json or how.detach else plain_reason()
    plain = bool(how.headless or how.json or reason)
    if reason:
        notice(f"no screen ({reason}): plain lines")
    resume = run_dir is not None
    place = new_run_dir(config) if run_dir is None else run_dir
    mode = "detached" if how.detach else "embedded" if how.embedded else "headless" if plain else "screen"

    abandoned = threading.Event()

    def start() -> Launched:
        ready = prepare(config, place) if prepare is not None else config
        return launch(ready, place, embedded=how.embedded, mode=mode, abandoned=abandoned, resume=resume)

    if how.detach:
        return _detached(start, abandoned, how)
    if plain:
        with apart() if how.embedded else contextlib.nullcontext():
            return asyncio.run(_headless(start, abandoned, place, how, before))
    about = Description("socket", run=place.run_id, name=config.run_name, dir=str(place.path))
    return on_screen(start, about, how)


def _detached(start: Callable[[], Launched], abandoned: threading.Event, how: How) -> int:
    from vf_core.errors import LinkError
    from vf_tui.starting import Starting

    starting = Starting(start)
    try:
        launched = starting.launched()
    except KeyboardInterrupt:
        # Nobody was told yet that it runs.
        notice("interrupted: stopping the run and cleaning up")
        abandoned.set()
        with contextlib.suppress(LinkError):
            starting.launched().interrupt("SIGINT")
        return INTERRUPTED
    if how.json:
        emit(launched.record())
    else:
        short = launched.run_dir.run_id[:8]
        say(f"run {short} {'resumed' if launched.resumed else 'started'} in {launched.run_dir.path}")
        say(f"watch it with: vf-tui attach {short}")
    return OK


def on_screen(start: Callable[[], Launched], about: Description, how: How) -> int:
    """Draw at once, while the run that `about` describes is still being started; the exit code."""
    from vf_tui.commands.screen import show
    from vf_tui.starting import Starting, StartingLink

    starting = Starting(start)
    code = show(StartingLink(starting, about), embedded=how.embedded, **(how.screen or {}))
    early = not starting.done
    if early:
        notice("still starting the run")
    launched = starting.launched()
    if how.embedded:
        _end_embedded(launched)
    elif early:
        notice(f"run continues; come back with `vf-tui attach {launched.run_dir.run_id[:8]}`")
    return code


def _end_embedded(launched: Launched) -> None:
    """The engine ends with this process: wait until it has cleaned up, whatever keys are pressed meanwhile."""
    if launched.ended(0.5):
        return
    launched.interrupt("SIGTERM")
    notice("stopping the run and cleaning up")
    while not launched.ended(1.0):
        pass


async def _headless(
    start: Callable[[], Launched],
    abandoned: threading.Event,
    run_dir: RunDir,
    how: How,
    before: RunState | None = None,
) -> int:
    """Watch in lines or records to the end; what `before` tells is not told again. A signal ends the run, gracefully
    and visibly."""
    from vf_core.errors import LinkError
    from vf_tui.headless import Reporter, on_signals, watch
    from vf_tui.launch import connect

    launched: Launched | None = None
    interrupted = ""

    def first(name: str) -> None:
        nonlocal interrupted
        interrupted = name
        abandoned.set()
        notice(f"{name}: stopping the run and cleaning up")
        if launched is not None:
            launched.interrupt(name)

    async with on_signals(first):
        starting = asyncio.ensure_future(asyncio.to_thread(start))
        try:
            try:
                launched = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # ctrl+c, just before signals were ours: what is being started must not outlive it.
                first("SIGINT")
                launched = await starting
        except LinkError:
            if interrupted:
                return INTERRUPTED
            raise
        if interrupted:
            launched.interrupt(interrupted)
        try:
            if how.json:
                emit(launched.record())
            else:
                notice(f"run directory: {run_dir.path}")
            link, state = await connect(launched)
            try:
                reporter = Reporter(json=how.json)
                if before is not None:
                    reporter.caught_up(before, silent=True)
                watched = await watch(link, state, reporter, from_start=True)
            finally:
                await link.close()
            return await _last_word(launched, watched, how)
        except Exception as e:
            await asyncio.to_thread(_unwatched, launched, how, e)
            raise


def _unwatched(launched: Launched, how: How, why: Exception) -> None:
    """Watching failed for `why`: an engine in this process ends with it, in order; another one goes on."""
    if how.embedded:
        _end_embedded(launched)
    elif isinstance(why, BrokenPipeError):
        short = launched.run_dir.run_id[:8]
        notice(f"nobody reads the output any more; the run goes on: vf-tui attach {short}")


async def _last_word(launched: Launched, watched: Any, how: How) -> int:
    """Wait for the engine's end and print how the run ended; the exit code."""
    from vf_core.config.paths import text_of
    from vf_tui.facts import run_facts
    from vf_tui.launch import ENDING
    from vf_tui.plain import summary

    state = watched.state
    if watched.lost:
        notice(f"error: the engine is lost: {watched.lost}; see {launched.run_dir.engine_log}")
    elif not await asyncio.to_thread(launched.ended, ENDING):
        notice(f"the engine (pid {launched.pid}) is still ending")
    code = INTERNAL if watched.lost or state.exit_code is None else state.exit_code
    if how.json:
        emit({"type": "done", **run_facts(state), "exit_code": code, "dir": text_of(launched.run_dir.path)})
    else:
        for line in summary(state):
            say(line)
    if state.unconfirmed:
        notice("`vf-tui sandboxes` asks for what is not proven gone, `vf-tui cleanup` ends it")
    return code
