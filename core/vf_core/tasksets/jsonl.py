"""The taskset `jsonl`: one task a line of a JSON Lines file, its answer judged by a match rule.

A row has `prompt` (text) or `messages`, an `answer` (or a list of them: any counts) and may have `match`:

* `exact`: the reply is the answer, white space around both left out.
* `contains`: the answer occurs in the reply.
* `regex`: the answer is a Python pattern that occurs in the reply.
* `numeric`: the last number in the reply equals the answer, within `tolerance`.
* `command`: `command` is run in the sandbox, after the agent. Exit code 0 is 1.0 and another one 0.0; when it exits
  with 0 and its last line is a number, that is the reward. A text is given to `sh -c`, a list is run as it is.
  The expected answer and the last reply are in the variables `VF_ANSWER` and `VF_REPLY` (cut to 100,000 bytes) and
  whole in the files that `VF_ANSWER_FILE` and `VF_REPLY_FILE` name.

* `judge`: by no rule; the run's judges say it all, and a run without one is refused. `answer` is for them.

Further fields: `name`, `description`, `system_prompt`, `files` ({path in the working directory: text}), `setup` (a
command run before the agent, text or list), `timeout` (seconds for the agent, or a table), `image`, `workdir`,
`resources`, `ignore_case`, `tolerance`, `info` (anything).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from vf_core.errors import ConfigError, TaskError
from vf_core.runtimes.base import Runtime
from vf_core.tasks import State, Task, TaskConfig, TaskData, Taskset, TasksetConfig, reward
from vf_core.tasksets._jsonl_rows import Command, Match, Row, read_row
from vf_core.tasksets._matching import match_command, match_reply
from vf_core.trace.record import Trace

OUTPUT_TAIL = 500


class JsonlConfig(TasksetConfig):
    """`path` is the file; the other fields hold for rows that don't say otherwise."""

    path: Path
    match: Match = "exact"
    system_prompt: str | None = None
    ignore_case: bool = False
    tolerance: float = Field(1e-6, ge=0)


class JsonlData(TaskData):
    """A row. `answer` holds the accepted answers as text; `tolerance` is relative for numbers above 1."""

    answer: list[str] = Field(default_factory=list)
    match: Match = "exact"
    command: Command | None = None
    setup: Command | None = None
    files: dict[str, str] = Field(default_factory=dict)
    ignore_case: bool = False
    tolerance: float = 1e-6
    info: dict[str, Any] = Field(default_factory=dict)


class JsonlTask(Task[JsonlData, State, TaskConfig]):
    """A row's files and setup command before the agent, its match rule after it."""

    async def setup(self, trace: Trace[JsonlData, State], runtime: Runtime) -> None:
        """Write the row's files and run its setup command."""
        for path, text in self.data.files.items():
            await runtime.write(path, text.encode("utf-8", errors="replace"))
        command = self.data.setup
        if command is None:
            return
        result = await runtime.run(["sh", "-c", command] if isinstance(command, str) else command)
        if result.exit_code != 0:
            told = (result.stderr or result.stdout).strip()[-OUTPUT_TAIL:] or "it printed nothing"
            raise TaskError(f"the row's setup command ended with exit code {result.exit_code}: {told}")

    @reward
    async def match(self, trace: Trace[JsonlData, State], runtime: Runtime) -> float | dict[str, float]:
        """What the row's match rule says of the last reply: 1.0 or 0.0, or what the command printed; no reward at all
        where judges say it."""
        if self.data.match == "judge":
            return {}
        if self.data.match == "command":
            return await match_command(self.data.command or [], self.data.answer, trace.last_reply, runtime)
        return await match_reply(
            self.data.match,
            self.data.answer,
            trace.last_reply,
            ignore_case=self.data.ignore_case,
            tolerance=self.data.tolerance,
        )


class JsonlTaskset(Taskset[JsonlTask, JsonlConfig]):
    """Reads the file line by line; no more of it than the run takes."""

    def load(self) -> Iterator[JsonlTask]:
        """A task a row. Raises ConfigError with file and line for what can't be one."""
        config, count = self.config, 0
        for number, raw in enumerate(_lines(config.path), 1):
            if raw.strip():
                where = f"{config.path}, line {number}"
                yield JsonlTask(_data(count, read_row(raw, where), where, config), config.task)
                count += 1
        if not count:
            raise ConfigError("the file has no rows", file=config.path)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file  # a binary file's lines end at \n only
    except FileNotFoundError as e:
        raise ConfigError(
            "no such file", file=path, key="env.taskset.path", hint="relative paths start at the config file"
        ) from e
    except OSError as e:
        raise ConfigError(f"can't be read: {e.strerror or e}", file=path, key="env.taskset.path") from e


def _data(idx: int, row: Row, where: str, config: JsonlConfig) -> JsonlData:
    try:
        rule = row.rule(config.match)
        if rule == "judge" and not config.task.judges:
            raise ValueError("match 'judge', and the config has no [[env.taskset.task.judges]]")
    except ValueError as e:
        raise ConfigError(str(e), file=where) from e
    return JsonlData(
        idx=idx,
        name=row.name,
        description=row.description,
        prompt=row.prompt if row.prompt is not None else row.messages,
        system_prompt=row.system_prompt if row.system_prompt is not None else config.system_prompt,
        image=row.image,
        workdir=row.workdir,
        timeout=row.timeouts(),
        resources=row.needs(),
        answer=row.answer or [],
        match=rule,
        command=row.command,
        setup=row.setup,
        files=row.files,
        ignore_case=config.ignore_case if row.ignore_case is None else row.ignore_case,
        tolerance=config.tolerance if row.tolerance is None else row.tolerance,
        info=row.info,
    )


__all__ = ["JsonlTaskset"]
