"""One line of a `jsonl` taskset's file: what may stand in it, and refusals that say where."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from vf_core.config.base import StrictModel
from vf_core.config.explain import explain, nearest
from vf_core.errors import ConfigError
from vf_core.tasksets._matching import to_number
from vf_core.trace.task import TaskResources, TaskTimeout
from vf_core.trace.types import Message
from vf_core.trace.wire import parse_message

Match = Literal["exact", "contains", "regex", "numeric", "command", "judge"]
ROLES = ("system", "developer", "user", "assistant", "tool")
COMMAND_LIMIT = 100_000
"""Bytes of one command: the kernel takes 128 KiB for one argument."""


def _command(value: str | list[str]) -> str | list[str]:
    parts = [value] if isinstance(value, str) else value
    if not parts or not parts[0].strip():
        raise ValueError("the command is empty")
    if any("\0" in part for part in parts):
        raise ValueError("a command can't hold a null character")
    if any(len(part.encode(errors="replace")) > COMMAND_LIMIT for part in parts):
        raise ValueError(f"the command is longer than {COMMAND_LIMIT} bytes: put it into `files`")
    return value


Command = Annotated[str | list[str], AfterValidator(_command)]
"""Text for `sh -c`, or an argv list."""


def _answers(value: Any) -> Any:
    if value is None:
        return None
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, str | int | float) for entry in entries):
        raise ValueError("expected text or a number, or a list of them")
    return [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]


def _messages(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise ValueError("expected a list of messages, not empty")
    for i, entry in enumerate(value):
        role = entry.get("role") if isinstance(entry, dict) else None
        if role not in ROLES:
            near = nearest(role, ROLES) if isinstance(role, str) else None
            hint = f"did you mean {near!r}?" if near else f"one of {', '.join(ROLES)}"
            raise ValueError(f"message {i} has the role {role!r} ({hint})")
    return [parse_message(entry) for entry in value]


def _files(value: dict[str, str]) -> dict[str, str]:
    for path in value:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or path.endswith("/") or ".." in parts or "\0" in path:
            raise ValueError(f"{path!r} is no path inside the working directory (relative, without `..`)")
    return value


def _timeout(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"harness": value}
    return value


Seconds = Annotated[float, Field(gt=0)]


class Timeouts(StrictModel):
    """Seconds for each stage; a bare number in a row is `harness`."""

    setup: Seconds | None = None
    harness: Seconds | None = None
    finalize: Seconds | None = None
    scoring: Seconds | None = None


class Resources(StrictModel):
    """What the row's sandbox needs, in the units of the runtimes' own options."""

    cpu: Annotated[float, Field(gt=0)] | None = None
    memory: Annotated[float, Field(gt=0)] | None = None
    gpu: str | None = None
    disk: Annotated[float, Field(gt=0)] | None = None


class Row(StrictModel):
    """A line as it is written. None: what the taskset's options say."""

    prompt: str | None = None
    messages: Annotated[list[Message], BeforeValidator(_messages)] | None = None
    answer: Annotated[list[str], BeforeValidator(_answers)] | None = None
    match: Match | None = None
    command: Command | None = None
    ignore_case: bool | None = None
    tolerance: Annotated[float, Field(ge=0)] | None = None
    name: Annotated[str, BeforeValidator(lambda v: str(v) if isinstance(v, int) else v)] | None = None
    description: str | None = None
    system_prompt: str | None = None
    setup: Command | None = None
    files: Annotated[dict[str, str], AfterValidator(_files)] = Field(default_factory=dict)
    timeout: Annotated[Timeouts, BeforeValidator(_timeout)] = Timeouts()
    image: str | None = None
    workdir: str | None = None
    resources: Resources = Resources()
    info: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _whole(self) -> Row:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("a row has either `prompt` or `messages`")
        if self.command is not None and self.match not in (None, "command"):
            raise ValueError(f"`command` has no use with match {self.match!r}")
        return self

    def rule(self, default: Match) -> Match:
        """The row's match rule, checked against its answer. Raises ValueError when they don't fit."""
        rule: Match = self.match or ("command" if self.command is not None else default)
        if rule == "command":
            if self.command is None:
                raise ValueError("match 'command' needs a `command`")
            return rule
        if rule == "judge":
            return rule
        if not self.answer:
            raise ValueError(f"match {rule!r} needs an `answer`")
        for answer in self.answer:
            _check_answer(rule, answer)
        return rule

    def timeouts(self) -> TaskTimeout:
        """For the task's data."""
        return TaskTimeout.model_validate(self.timeout.model_dump())

    def needs(self) -> TaskResources:
        """For the task's data."""
        return TaskResources.model_validate(self.resources.model_dump())


def _check_answer(rule: Match, answer: str) -> None:
    if rule in ("contains", "regex") and not answer:
        raise ValueError(f"an empty answer would match every reply (match {rule!r})")
    if rule == "numeric" and to_number(answer) is None:
        raise ValueError(f"the answer {answer!r} is not a number (match 'numeric')")
    if rule == "regex":
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                re.compile(answer)
        except (re.error, RecursionError, OverflowError) as e:
            raise ValueError(f"the answer {answer!r} is not a valid pattern: {e}") from e


def read_row(raw: bytes, where: str) -> Row:
    """The row that a line holds. Raises ConfigError, which tells `where` (file and line), key and what is wrong."""
    try:
        data = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as e:
        raise ConfigError(
            f"not UTF-8 (byte 0x{raw[e.start]:02x})", file=where, hint="save the file as UTF-8"
        ) from e
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"not valid JSON: {e or type(e).__name__}", file=where) from e
    if not isinstance(data, dict):
        raise ConfigError(f"a row is a JSON object, this is a {_kind(data)}", file=where)
    try:
        return Row.model_validate(data)
    except ValidationError as e:
        raise explain(e, Row, where, data) from e


def _kind(value: Any) -> str:
    names = {list: "list", str: "text", int: "number", float: "number", bool: "truth value"}
    return names.get(type(value), "null")
