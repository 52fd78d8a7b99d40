"""The Prime CLI's way to a v1 eval: `python -m vf_core.eval_v1_prime TARGET [OPTION]...`, or `main(argv)`.

A `.toml` file with a table `env.taskset` is run as `vf-tui run @ FILE --headless`; the options that a host for v0
evals injects are translated. Any other target goes, unchanged, to verifiers' own evaluator.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from vf_core.config.load import load_toml
from vf_core.errors import ConfigError
from vf_core.text import clean

USAGE = 2
RUN = "vf_tui.cli"
EVALUATOR = "verifiers.cli.commands.eval"

# Where and how the host would reach its model, and where its environments are: the config says that.
DROPPED_WITH_VALUE = frozenset(
    ["--api-base-url", "-b", "--api-key-var", "-k", "--provider", "-p", "--endpoints-path", "-e"]
).union(["--header", "--header-from-state", "--env-dir-path"])
DROPPED = frozenset(["--save-results", "-s", "--disable-tui"])
KEPT_WITH_VALUE = frozenset(["--model", "-m", "--output-dir", "-o"])
KEPT = frozenset(["--dry-run", "--verbose", "--no-push"])
RENAMED = {"--skip-upload": "--no-push"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run what `argv` (default: the process's arguments) asks for, to its end; its exit code.

    2 when it is refused: nothing was started then.
    """
    try:
        command = command_for(sys.argv[1:] if argv is None else argv)
    except ConfigError as e:
        sys.stderr.write(clean(f"error: {e}") + "\n")
        return USAGE
    return _run(command)


def command_for(argv: Sequence[str]) -> list[str]:
    """The module to run and its arguments. Raises `ConfigError` for what nobody here can run."""
    why = why_not_v1(argv[0]) if argv else "no target was given"
    if not why:
        return [RUN, "run", "@", os.path.abspath(argv[0]), "--headless", *translate(argv[1:])]
    if not _has_evaluator():
        raise ConfigError(
            f"{why}, and verifiers, whose evaluator runs all else, is not installed here",
            hint="give a .toml file with a table [env.taskset], or install verifiers",
        )
    return [EVALUATOR, *argv]


def why_not_v1(target: str) -> str:
    """Why `target` is no v1 config; empty when it is one."""
    if not target.endswith(".toml") or not os.path.isfile(target):
        return f"{target!r} is not an existing .toml file"
    try:
        env = load_toml(Path(target)).get("env")
    except ConfigError as e:
        return str(e)
    if not isinstance(env, dict) or not isinstance(env.get("taskset"), dict):
        return f"{target!r} has no table [env.taskset]"
    return ""


def translate(args: Sequence[str]) -> list[str]:
    """The options of `vf-tui run` that a host's `args` stand for. Raises `ConfigError` that names any other."""
    out: list[str] = []
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        name, equals, _ = arg.partition("=")
        if name in KEPT_WITH_VALUE or name in DROPPED_WITH_VALUE:
            option = [arg]
            if not equals:
                if not rest or rest[0].startswith("-"):
                    raise ConfigError(
                        f"{name} needs a value", hint=f"write {name}=VALUE if it begins with a dash"
                    )
                option.append(rest.pop(0))
            out += option if name in KEPT_WITH_VALUE else ()
        elif arg in KEPT or arg in RENAMED:
            option = [RENAMED.get(arg, arg)]
            out += option if option[0] not in out else ()
        elif arg not in DROPPED:
            raise ConfigError(f"{arg!r} can't be given for a v1 config", hint="write it in the .toml file")
    return out


def _has_evaluator() -> bool:
    """verifiers is installed, with the module that hosts call; it is not imported."""
    spec = find_spec(EVALUATOR.partition(".")[0])
    below = Path(*EVALUATOR.split(".")[1:]).with_suffix(".py")
    return spec is not None and any(
        (Path(place) / below).is_file() for place in spec.submodule_search_locations or ()
    )


def _run(module_and_args: list[str]) -> int:
    """Run a module as a process of its own: its end must not be that of whoever called `main`."""
    process = subprocess.Popen([sys.executable, "-m", *module_and_args])
    with _signals_for(process):
        code = process.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _signals_for(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Inside, SIGINT and SIGTERM are the process's affair; a terminal's ctrl+c has reached it already."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, _: object) -> None:
        if number != signal.SIGINT or not _in_foreground():
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """Our process group is the one that its terminal sends signals to."""
    for fd in range(3):
        with contextlib.suppress(OSError):
            return os.tcgetpgrp(fd) == os.getpgrp()
    return False


if __name__ == "__main__":
    sys.exit(main())
