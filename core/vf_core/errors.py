"""The error vocabulary: one type per boundary that a failure can cross.

A rollout's failure is data: it is recorded on its trace under the name of its type. Code that
belongs to others (task hooks, harness subclasses) raises plain exceptions; `boundary` attributes them.
The names follow verifiers v1, so that retry lists and trace readers work for both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class VfError(Exception):
    """A failure that is told to the user: what happened, and in `hint` what to do about it."""

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(VfError):
    """A config was refused; nothing has been started.

    `file` is the file it was read from, `key` the dotted key (None: the whole file or the command line).
    """

    def __init__(
        self, message: str, *, file: Path | str | None = None, key: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.key = key

    def __str__(self) -> str:
        where = ": ".join(str(part) for part in (self.file, self.key) if part)
        text = f"{where}: {self.message}" if where else self.message
        return f"{text} ({self.hint})" if self.hint else text


class PluginError(ConfigError):
    """A taskset, harness or judge could not be found or does not fit."""


class LinkError(VfError):
    """An engine could not be reached, or refused what it was asked."""


class EngineSilentError(LinkError):
    """An engine is there but does not answer: it is paused or overloaded. Trying again may help."""


class RunDirError(VfError):
    """A run directory could not be read or written."""


class RolloutError(VfError):
    """Base of what is recorded on a trace instead of ending the run."""


class ProviderError(RolloutError):
    """A model call failed. `status_code` is the HTTP status shown to the harness; `unreachable`: no answer came, as
    opposed to one that was an error."""

    def __init__(
        self,
        message: str = "",
        *,
        status_code: int = 502,
        hint: str | None = None,
        unreachable: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status_code = status_code
        self.unreachable = unreachable


class OverlongPromptError(ProviderError):
    """The prompt exceeded the model's context window."""

    def __init__(self, message: str = "", *, status_code: int = 400, hint: str | None = None) -> None:
        super().__init__(message, status_code=status_code, hint=hint)


class HarnessError(RolloutError):
    """The harness could not be installed or launched, or its program exited unsuccessfully."""


class ToolsetError(RolloutError):
    """A tool server could not be built or served."""


class SandboxError(RolloutError):
    """A runtime operation failed: creation, a command, a file."""


class SandboxFileNotFoundError(SandboxError):
    """No such file in the sandbox."""


class SandboxIsADirectoryError(SandboxError):
    """A file was expected, a directory is there."""


class SandboxUnconfirmedError(SandboxError):
    """A sandbox could not be proven gone: it survived, or the provider could not be asked."""


class TaskError(RolloutError):
    """Task code raised: `setup`, `finalize`, a reward, a metric."""


class JudgeError(TaskError):
    """A judge gave no verdict: its call failed, it refused, or its answer can't be read. Never a score of zero."""


class InterceptionError(RolloutError):
    """The interception server could not be started or reached."""


class TunnelError(InterceptionError):
    """The tunnel to the interception server could not be established."""


@asynccontextmanager
async def boundary(error: type[RolloutError], what: str) -> AsyncIterator[None]:
    """Attribute what escapes the block to `error`; a `RolloutError` already says where it came from."""
    try:
        yield
    except RolloutError:
        raise
    except TimeoutError as e:
        raise error(f"{what} timed out") from e
    except Exception as e:
        raise error(f"{what}: {type(e).__name__}: {e}") from e
