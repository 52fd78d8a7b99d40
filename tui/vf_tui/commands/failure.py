"""How a command that fails ends: one line on stderr, and the exit code that says what kind of failure it was."""

from __future__ import annotations

import logging

import click

from vf_core.errors import ConfigError, RunDirError, VfError
from vf_tui.cli import INTERNAL, INTERRUPTED, USAGE
from vf_tui.commands.console import log_file, log_to_file, notice

log = logging.getLogger("vf_tui")


def tell(error: BaseException) -> int:
    """Tell the user; the exit code. What nobody expected is in the log file with its traceback."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else INTERNAL if error.code else 0
    if isinstance(error, click.Abort | KeyboardInterrupt):
        notice("interrupted")
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        notice(f"error: {error.format_message()}")
        if isinstance(error, click.UsageError) and error.ctx is not None:
            notice(f"usage: {error.ctx.command_path} --help")
        return USAGE
    if isinstance(error, VfError):
        notice(f"error: {error}")
        return USAGE if isinstance(error, ConfigError | RunDirError) else INTERNAL
    log_to_file()
    log.error("unexpected failure", exc_info=error)
    notice(f"internal error: {type(error).__name__}: {error} (the log has it all: {log_file()})")
    return INTERNAL
