"""Tool servers: a `Toolset`'s `@tool` methods are served to the agent over MCP, each server a program of its own.

Subclass it as `Toolset[MyConfig, MyState]` and name the class in `Task.tools` (one server for each rollout) or
`Taskset.tools` (one for the run). The class is imported by name in the server's process: it stands at the top of a
module, and what it holds beside its config is made in `setup`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Annotated, Any, ClassVar, Generic, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    SecretStr,
    SerializeAsAny,
    field_validator,
    model_validator,
)
from typing_extensions import TypeVar

from vf_core.config.base import StrictModel
from vf_core.config.client import header_name, header_value, web_address
from vf_core.errors import ConfigError
from vf_core.runtimes import runtime_config_class
from vf_core.runtimes.base import RuntimeConfig
from vf_core.tasks.base import no_op, parameter
from vf_core.tasks.decorators import marked_tools
from vf_core.trace.task import State, StateT

PREFIX = re.compile(r"[A-Za-z0-9_-]{0,48}")
_FRAMING = frozenset(("host", "content-length", "transfer-encoding", "connection"))


def _header_name(name: str) -> str:
    if header_name(name).lower() in _FRAMING:
        raise ValueError("this header is set by the client itself")
    return name


def _header_value(value: SecretStr) -> SecretStr:
    header_value(value.get_secret_value())
    return value


def _on_host() -> RuntimeConfig:
    return runtime_config_class("subprocess").model_validate({})


class ToolsetConfig(StrictModel):
    """Where a tool server runs. Subclass it for a toolset's own options; every field needs a default.

    By default it is a program on this host. `runtime`: in a sandbox of its own of that kind; `colocated`: in the
    rollout's own sandbox; `url`, with `headers` for its requests: it runs already, and is neither started nor ended
    here. `tool_prefix` goes before the tools' names in place of the class's `TOOL_PREFIX`; empty: nothing does.
    """

    colocated: bool = False
    runtime: SerializeAsAny[RuntimeConfig] = Field(default_factory=_on_host)
    url: str | None = None
    headers: dict[
        Annotated[str, AfterValidator(_header_name)], Annotated[SecretStr, AfterValidator(_header_value)]
    ] = Field(default_factory=dict)
    tool_prefix: str | None = None

    @field_validator("runtime", mode="before")
    @classmethod
    def _of_its_kind(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        try:
            return runtime_config_class(str(value.get("type", "subprocess"))).model_validate(value)
        except ConfigError as e:
            raise ValueError(str(e)) from e

    @field_validator("url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        return web_address(value, "the address of an MCP server, such as https://host/mcp")

    @field_validator("tool_prefix")
    @classmethod
    def _prefix(cls, value: str | None) -> str | None:
        if value is not None and not PREFIX.fullmatch(value):
            raise ValueError("expected at most 48 letters, digits, _ and -")
        return value

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        elsewhere = self.runtime.type != "subprocess"
        if self.url is not None and (self.colocated or elsewhere):
            raise ValueError("a server with a url runs already: leave out colocated and runtime")
        if self.colocated and elsewhere:
            raise ValueError("colocated is the rollout's own sandbox: leave out runtime")
        if self.headers and self.url is None:
            raise ValueError("headers are for a server with a url; one of ours has a token of its own")
        return self


ToolsetConfigT = TypeVar("ToolsetConfigT", bound=ToolsetConfig, default=ToolsetConfig)


class NoState(State):
    """The state of a toolset that declares none: it holds nothing, so that nothing is lost in it."""

    model_config = ConfigDict(extra="forbid")


call_state: ContextVar[State | None] = ContextVar("vf_call_state", default=None)
"""The state of the rollout whose call is under way; calls of several rollouts may be at once."""


class Toolset(Generic[ToolsetConfigT, StateT]):
    """Tools served as one MCP server."""

    TOOL_PREFIX: ClassVar[str | None] = ""
    """What goes before each tool's name, with `_`. Empty: the class's name in snake case; None: nothing."""
    EXTRAS: ClassVar[tuple[str, ...]] = ()
    """Extras of its distribution that it needs, installed with it in a sandbox."""

    config: ToolsetConfigT

    def __init__(self, config: ToolsetConfigT | None = None) -> None:
        self.config = config if config is not None else toolset_config(type(self))()  # type: ignore[assignment]
        self._idle: State = NoState()

    @property
    def state(self) -> StateT:
        """The state of the rollout whose call is under way. What a call changes on it is there when it returns."""
        return call_state.get() or self._idle  # type: ignore[return-value]

    @property
    def server_name(self) -> str:
        """The prefix under which its tools are advertised; empty: bare."""
        if self.config.tool_prefix is not None:
            return self.config.tool_prefix
        if self.TOOL_PREFIX is None:
            return ""
        return self.TOOL_PREFIX or snake(type(self).__name__)

    @no_op
    async def setup(self) -> None:
        """Make what all calls use, in the server's process, before it serves."""

    @no_op
    async def setup_task(self, task: Any) -> None:
        """Get ready for a rollout's row. Not called for a server that all rollouts share."""


def snake(name: str) -> str:
    """`WebSearch` as `web_search`."""
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


def toolset_config(cls: type[Toolset[Any, Any]]) -> type[ToolsetConfig]:
    """The config class that a toolset class declares."""
    return parameter(cls, ToolsetConfig) or ToolsetConfig


def toolset_state(cls: type[Toolset[Any, Any]]) -> type[State]:
    """The state class that a toolset class declares; `NoState` when it declares none."""
    return parameter(cls, State) or NoState


def tool_names(cls: type[Toolset[Any, Any]]) -> dict[str, str]:
    """Its tools' own names, without prefix, and the methods that they are."""
    return {mark_name or name: name for name, mark_name in marked_tools(cls)}


def needs_channel(cls: type[Toolset[Any, Any]], *, shared: bool) -> bool:
    """Whether its server asks for the rollout's state or row."""
    wants_task = not shared and not getattr(cls.setup_task, "does_nothing", False)
    return wants_task or toolset_state(cls) is not NoState


def resolve_server_config(
    owner: str, config: StrictModel, cls: type[Toolset[Any, Any]], *, sole: bool
) -> ToolsetConfig:
    """The config that a declared toolset gets: the field of `config` of exactly its config class; where it is the
    `sole` one declared, also of a subclass; else the defaults.

    Raises `ConfigError` when several fields fit: the owner's `server_config` says which then.
    """
    wanted = toolset_config(cls)
    values = {name: getattr(config, name) for name in type(config).model_fields}
    found = [name for name, value in values.items() if type(value) is wanted]
    if not found and sole:
        found = [name for name, value in values.items() if isinstance(value, wanted)]
    if len(found) > 1:
        raise ConfigError(
            f"{owner}: the options {', '.join(found)} may all be meant for {cls.__name__}",
            hint="override server_config to say which",
        )
    return values[found[0]] if found else wanted()
