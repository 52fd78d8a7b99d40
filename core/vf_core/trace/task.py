"""The part of a task that travels: one row's data, and the scratch state of one rollout.

It stands in this room, not beside the task classes, because a trace holds it and is read without them.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypeVar

from vf_core.trace.types import Messages, content_text


class TaskTimeout(BaseModel):
    """Limits of one task in seconds; None: the run's own limit, if any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    setup: float | None = None
    harness: float | None = None
    finalize: float | None = None
    scoring: float | None = None


class TaskResources(BaseModel):
    """What a task's sandbox needs: CPU cores, memory and disk in GB, a GPU as `TYPE`, `TYPE:COUNT` or `COUNT`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpu: float | None = None
    memory: float | None = None
    gpu: str | None = None
    disk: float | None = None


class TaskData(BaseModel):
    """One row: what is asked, and all that judging the answer needs. Subclass it to add typed fields.

    `idx` is the row's number in its taskset, from 0. `prompt` None: somebody else opens the conversation.
    `image` and `workdir` override the runtime's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    idx: int
    name: str | None = None
    description: str | None = None
    prompt: str | Messages | None = None
    system_prompt: str | None = None
    image: str | None = None
    workdir: str | None = None
    timeout: TaskTimeout = TaskTimeout()
    resources: TaskResources = TaskResources()

    @property
    def prompt_text(self) -> str:
        """The prompt as text: messages joined by blank lines, images left out."""
        if isinstance(self.prompt, str):
            return self.prompt
        texts = (content_text(message.content) for message in self.prompt or ())
        return "\n\n".join(text for text in texts if text)


class WireTaskData(TaskData):
    """A row read from a record, without its task class: fields it does not know are kept as attributes."""

    model_config = ConfigDict(extra="allow", frozen=True)


class State(BaseModel):
    """What the hooks and tools of one rollout share; never written anywhere. Subclass it for typed fields."""

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")


# `Any` as default: an unparameterized `Trace` serves every task, and keeps a subclass's fields when dumped.
DataT = TypeVar("DataT", bound=TaskData, default=Any)
StateT = TypeVar("StateT", bound=State, default=Any)
