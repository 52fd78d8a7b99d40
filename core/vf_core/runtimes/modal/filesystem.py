"""The SDK's own way to files in a sandbox."""

from __future__ import annotations

from typing import Any

from vf_core.errors import SandboxFileNotFoundError, SandboxIsADirectoryError
from vf_core.runtimes.modal import sdk
from vf_core.runtimes.modal.sdk import bounded

FILE = 120.0  # seconds for a small file; larger ones get more
RATE = 256 * 1024  # bytes a second that a connection is trusted to carry at least


async def write_file(sandbox: Any, path: str, data: bytes) -> None:
    """Make or replace a file and the directories above it. `path` is absolute. Raises `SandboxError`."""
    errors = sdk.load().exception
    try:
        await bounded(sandbox.filesystem.write_bytes.aio(data, path), FILE + len(data) / RATE)
    except errors.SandboxFilesystemIsADirectoryError as e:
        raise SandboxIsADirectoryError(f"{path} is a directory") from e
    except errors.SandboxFilesystemNotFoundError as e:
        raise SandboxFileNotFoundError(f"{path}: no such file in the sandbox") from e
    except Exception as e:
        raise sdk.trouble(f"{path} could not be written", e) from e
