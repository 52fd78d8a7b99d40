"""The `pool` harness: Poolside's `pool exec`, a client of the interception server.

It is shut off from its user's own pool: no login, no settings, hooks or servers of a home directory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pydantic import Field, field_validator

from vf_core.errors import ConfigError
from vf_core.harnesses.base import Harness, HarnessConfig, ModelContext
from vf_core.harnesses.chat_program import NO_TERMINAL
from vf_core.harnesses.pool.install import install, pool_directory
from vf_core.trace.types import Message, Messages, SystemMessage, TextContentPart, UserMessage

if TYPE_CHECKING:
    from vf_core.runtimes.base import OutputSink, ProgramResult, Runtime
    from vf_core.trace.record import Trace
    from vf_core.trace.task import TaskData

RELEASES: Final = "https://github.com/poolsideai/pool/releases/download"
SETTINGS: Final = ".poolside/settings.local.yaml"
_PLACE: Final = ".vf-pool"
"""Its directory in the workspace."""
_OURS: Final = ("POOLSIDE_API_KEY", "POOLSIDE_STANDALONE_BASE_URL", "POOLSIDE_STANDALONE_MODEL")
# These would have it work for another service than the run's.
_FOREIGN: Final = ("POOLSIDE_API_URL", "POOLSIDE_TOKEN")
_HOMES: Final = {"HOME": "home", "XDG_CONFIG_HOME": "config", "XDG_STATE_HOME": "state"}
_UNSET: Final = (*_FOREIGN, "XDG_CACHE_HOME", "XDG_DATA_HOME")
"""What an image may have set. The last two are under HOME then."""
_ADDRESS: Final = re.compile(r"(?:https?|file)://[^\s\x00-\x1f\x7f\"\\?#]+")


class PoolHarnessConfig(HarnessConfig):
    """Options of the `pool` harness.

    `version` of pool, downloaded from `release_base`/v`version`/. `disabled_tools` are pool's own names.
    """

    id: str = "pool"
    version: str = Field(default="1.0.11", pattern=r"^[A-Za-z0-9._+-]+$")
    release_base: str = RELEASES

    @field_validator("release_base")
    @classmethod
    def _address(cls, value: str) -> str:
        if not _ADDRESS.fullmatch(value):
            raise ValueError("must be an http, https or file address, without a query")
        return value.rstrip("/")


class PoolHarness(Harness[PoolHarnessConfig]):
    """Runs `pool exec`. It takes one text: system prompts go at the head of it."""

    SUPPORTS_MCP = True
    SUPPORTS_MESSAGE_PROMPT = True
    EXIT_DECLINED = 4

    def validate(self) -> None:
        """See `Harness.validate`."""
        for name in (*_OURS, *_FOREIGN):
            for key, names in (("env", self.config.env), ("forward_env", self.config.forward_env)):
                if name in names:
                    raise ConfigError(
                        f"{name} is not to be given to pool: it works for the run's own model and provider",
                        key=f"env.agent.harness.{key}",
                        hint=f"remove {name}; set model and client in the config",
                    )

    def resolve_prompt(self, task: TaskData) -> tuple[None, str]:
        """See `Harness.resolve_prompt`: one text, its parts joined by blank lines."""
        if task.prompt is None:
            raise ValueError("it has no prompt, and harness 'pool' needs one")
        texts = list(_texts(task.prompt))
        if not any(texts):
            raise ValueError("its prompt is empty")
        whole = "\n\n".join(text for text in (task.system_prompt, *texts) if text)
        try:
            whole.encode()
        except UnicodeEncodeError as e:
            raise ValueError(
                f"its prompt has half of a surrogate pair at character {e.start}, which no text file can hold"
            ) from e
        return None, whole

    async def setup(self, runtime: Runtime) -> None:
        """See `Harness.setup`."""
        config = self.config
        await install(runtime, config.version, config.release_base, config.resolved_env)

    async def launch(  # noqa: PLR0917
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        on_output: OutputSink,
    ) -> ProgramResult:
        """See `Harness.launch`."""
        _, prompt = self.resolve_prompt(trace.task.data)
        file = f"{_PLACE}/prompt-{trace.id}.txt"
        await runtime.write(file, prompt.encode())
        await runtime.write(SETTINGS, json.dumps(self._settings(mcp_urls)).encode())
        asked = self.config.resolved_env
        argv = [f"{pool_directory(self.config.version)}/pool", "exec", "--unsafe-auto-allow"]
        argv += ["--sandbox", "disabled", "--prompt-file", file]
        environment = {**NO_TERMINAL, **asked, **dict(zip(_OURS, (secret, endpoint, ctx.model), strict=True))}
        return await runtime.run_program(
            ["sh", "-c", _isolated(asked), "pool", *argv], environment, on_output=on_output
        )

    def _settings(self, mcp_urls: Mapping[str, str]) -> dict[str, object]:
        """What stands in the workspace's settings file; JSON is YAML."""
        return {
            "mcp_servers": {
                name: {"transport": {"type": "http", "url": url}} for name, url in mcp_urls.items()
            },
            "tools": {name: {"disabled": True} for name in self.config.disabled_tools},
        }


def _isolated(asked: Mapping[str, str]) -> str:
    """A script that runs its arguments with a home in the workspace, but for what was `asked` to be otherwise."""
    homes = {name: f'"$PWD/{_PLACE}/{place}"' for name, place in _HOMES.items() if name not in asked}
    unset = [name for name in _UNSET if name not in asked]
    lines = [f"unset {' '.join(unset)}"] if unset else []
    if homes:
        lines.append(f"mkdir -p {' '.join(homes.values())} || exit 126")
        lines.append("export " + " ".join(f"{name}={place}" for name, place in homes.items()))
    return "\n".join([*lines, 'exec "$@"'])


def _texts(prompt: str | Messages) -> Iterator[str]:
    """The texts of a prompt, in order. Raises ValueError naming what `pool exec` can't be given."""
    if isinstance(prompt, str):
        yield prompt
        return
    for number, message in enumerate(prompt, 1):
        yield from _message_texts(number, message)


def _message_texts(number: int, message: Message) -> Iterator[str]:
    if not isinstance(message, SystemMessage | UserMessage):
        raise ValueError(
            f"message {number} of its prompt has the role {message.role!r}, "
            "and harness 'pool' takes system and user only"
        )
    if isinstance(message.content, str):
        yield message.content
        return
    for part in message.content:
        if not isinstance(part, TextContentPart):
            raise ValueError(
                f"message {number} of its prompt has an image, and harness 'pool' takes text only"
            )
        yield part.text
