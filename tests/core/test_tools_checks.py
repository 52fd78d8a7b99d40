"""Tools that cannot be served, or not together, are refused before any sandbox exists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from vf_core.engine.plan import make_plan
from vf_core.engine.tool_checks import check_tools, warnings_of
from vf_core.errors import ConfigError, PluginError, VfError
from vf_core.eval_config import EvalConfig
from vf_core.harnesses.base import Harness, HarnessConfig
from vf_core.harnesses.bash.harness import BashHarness, BashHarnessConfig
from vf_core.tasks import (
    State,
    Task,
    TaskConfig,
    TaskData,
    Taskset,
    TasksetConfig,
    Toolset,
    ToolsetConfig,
    tool,
)


class Search(Toolset):
    """Bare prefix rules: its class's name."""

    @tool
    def find(self) -> str:
        """Find."""
        return ""


class SearchFind(Toolset):
    TOOL_PREFIX = "search_find"

    @tool
    def it(self) -> str:
        """Another way to `search_find_it`."""
        return ""


class Splits(Toolset):
    TOOL_PREFIX = "search"

    @tool
    def other(self) -> str:
        """The prefix of `Search`."""
        return ""


class Joins(Toolset):
    TOOL_PREFIX = None

    @tool
    def search_find(self) -> str:
        """A bare name that `Search` also comes to."""
        return ""


class Bare(Toolset):
    TOOL_PREFIX = None

    @tool
    def bash(self) -> str:
        """The name of the harness's own tool."""
        return ""


class BareToo(Toolset):
    TOOL_PREFIX = None

    @tool
    def quiet(self) -> str:
        """A second bare server."""
        return ""


class Edit(Toolset):
    """Its prefix is the name of a tool of bash's."""

    @tool
    def it(self) -> str:
        """Edit."""
        return ""


class Empty(Toolset):
    """No tools."""


class Twins(Toolset):
    @tool(name="it")
    def one(self) -> str:
        """One."""
        return ""

    @tool
    def it(self) -> str:
        """The other, which would be the only one."""
        return ""


class Long(Toolset):
    @tool(name="x" * 64)
    def it(self) -> str:
        """Too long with its prefix."""
        return ""


class Needy(State):
    """It cannot be made from nothing."""

    name: str


class Stateful(Toolset[ToolsetConfig, Needy]):
    @tool
    def it(self) -> str:
        """One."""
        return ""


class Prefixed(Toolset):
    TOOL_PREFIX = "a b"

    @tool
    def it(self) -> str:
        """One."""
        return ""


class Prepared(Toolset):
    async def setup_task(self, task: Any) -> None:
        """Never called for a shared server."""

    @tool
    def it(self) -> str:
        """One."""
        return ""


class Rows(TaskConfig):
    own: ToolsetConfig = ToolsetConfig()


def check(
    *own: type[Toolset[Any, Any]],
    shared: tuple[type[Toolset[Any, Any]], ...] = (),
    options: dict[str, Any] | None = None,
    harness: Harness[Any] | None = None,
    **config: Any,
) -> tuple[Toolset[Any, Any], ...]:
    """The checks of a task with those toolsets, with `options` for its only one."""

    class Row(Task[TaskData, State, Rows]):
        tools: ClassVar[Any] = own

    class Set(Taskset[Row, TasksetConfig]):
        tools: ClassVar[Any] = shared

        def load(self) -> list[Row]:
            return []

    rows = Rows(own=ToolsetConfig.model_validate(options or {}))
    run = EvalConfig.from_dict({"model": "m", "env": {"taskset": {"id": "demo"}, **config}})
    harness = harness or BashHarness(BashHarnessConfig(edit=True))  # type: ignore[arg-type]
    task = Row(TaskData(idx=0, prompt="x"), rows)
    return check_tools(Set(TasksetConfig()), [task], harness, run)


@pytest.mark.parametrize(
    ("own", "shared", "said"),
    [
        ((Search, Splits), (), "the prefix 'search' is taken twice: by toolset Search and by toolset Splits"),
        ((Search,), (Splits,), "the prefix 'search' is taken twice: by toolset Splits and by toolset Search"),
        (
            (Search, Joins),
            (),
            "the name 'search_find' is taken twice: by toolset Search and by toolset Joins",
        ),
        ((Bare,), (), "the name 'bash' is taken twice: by harness 'bash' and by toolset Bare"),
        ((Joins, BareToo), (), "bare names is taken twice: by toolset Joins and by toolset BareToo"),
        ((Edit,), (), "the prefix 'edit' is taken twice: by harness 'bash' and by toolset Edit"),
        ((Empty,), (), "toolset Empty has no tools (mark its methods with @tool)"),
        ((Twins,), (), "toolset Twins has two tools of the name 'it'"),
        ((Long,), (), f"models cannot be told of a tool 'long_{'x' * 64}'"),
        ((Stateful,), (), "its state Needy cannot be made"),
        ((Prefixed,), (), "TOOL_PREFIX is to be at most 48 letters"),
        ((int,), (), "Row.tools is no tuple of Toolset classes"),
    ],
)
def test_what_cannot_be_served_is_refused(own: Any, shared: Any, said: str) -> None:
    with pytest.raises(VfError) as caught:
        check(*own, shared=shared)
    assert said in str(caught.value)


def test_what_fits_is_taken() -> None:
    assert [type(one) for one in check(Search, SearchFind, BareToo, shared=())] == []
    (one,) = check(Search, shared=(Prepared,))
    assert "its setup_task is never called" in next(warnings_of([one]))
    assert not list(warnings_of([Search()]))


def test_a_class_that_another_process_cannot_import_is_refused() -> None:
    class Inside(Toolset):
        @tool
        def it(self) -> str:
            """One."""
            return ""

    with pytest.raises(PluginError, match=r"its server cannot import .*Inside"):
        check(Inside)


class Deaf(Harness[HarnessConfig]):
    async def launch(self, *args: Any) -> Any:
        """Never called."""


def test_a_harness_without_mcp_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="cannot use tools of MCP servers, and the tasks have toolset Search"
    ):
        check(Search, harness=Deaf(HarnessConfig(id="deaf")))


TUNNEL = {"tunnel": {"type": "custom", "url": "http://t.example", "port": 8765}}


@pytest.mark.parametrize(
    ("options", "config", "said"),
    [
        ({"runtime": {"type": "modal"}}, {}, "env.taskset.task.own.runtime.expose_ports"),
        (
            {"colocated": True},
            {"agent": {"runtime": {"type": "prime"}}, "interception": TUNNEL},
            "none of its ports",
        ),
        (
            {"colocated": True},
            {"agent": {"runtime": {"type": "docker"}}},
            "it stands in the source tree of vf-tui",
        ),
    ],
)
def test_a_place_that_cannot_be_reached_is_refused(
    options: Any, config: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.setenv(name, "x")
    with pytest.raises(ConfigError) as caught:
        check(Search, options=options, **config)
    assert said in str(caught.value)


def run_config(tmp_path: Path, **taskset: Any) -> EvalConfig:
    agent = {"harness": {"id": "vf_test_caller"}}
    return EvalConfig.from_dict(
        {
            "model": "m",
            "output_dir": str(tmp_path),
            "env": {"taskset": {"id": "vf_test_toolset", "prompts": ["[]"], **taskset}, "agent": agent},
        },
        file="run.toml",
    )


@pytest.mark.parametrize(
    ("taskset", "said"),
    [
        ({"lookup": {"runtime": {"type": "doker"}}}, "there is no runtime 'doker'"),
        (
            {"lookup": {"runtime": {"type": "docker", "imag": "x"}}},
            "env.taskset.lookup.runtime.imag: unknown key",
        ),
        ({"lookup": {"urll": "http://x/mcp"}}, "env.taskset.lookup.urll: unknown key (did you mean url?)"),
        ({"lookup": {"url": "http://u:pw@x/mcp"}}, "must not hold a password"),
        ({"lookup": {"url": "http://x/mcp", "colocated": True}}, "a server with a url runs already"),
        ({"lookup": {"headers": {"X-Key": "1"}}}, "headers are for a server with a url"),
        ({"lookup": {"url": "https://x.example/mcp", "headers": {"Host": "x"}}}, "set by the client itself"),
        (
            {"lookup": {"colocated": True, "runtime": {"type": "docker"}}},
            "colocated is the rollout's own sandbox",
        ),
        ({"task": {"notes": {"tool_prefix": "a.b"}}}, "at most 48 letters, digits, _ and -"),
    ],
)
def test_a_toolset_s_options_are_checked_with_the_config(tmp_path: Path, taskset: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_config(tmp_path, **taskset)
    assert said in str(caught.value)
    assert "pw" not in str(caught.value).replace("password", "")


def test_the_plan_has_the_shared_ones_and_says_their_key(tmp_path: Path) -> None:
    plan = make_plan(run_config(tmp_path, lookup={"tool_prefix": ""}))
    assert [one.server_name for one in plan.shared_tools] == [""]
    with pytest.raises(ConfigError, match=r"env\.taskset\.lookup\.colocated: toolset Lookup is shared"):
        make_plan(run_config(tmp_path, lookup={"colocated": True}))
    with pytest.raises(
        ConfigError, match=r"env\.taskset\.task\.notes\.tool_prefix: the prefix 'db' is taken twice"
    ):
        make_plan(run_config(tmp_path, task={"notes": {"tool_prefix": "db"}}))


def test_headers_are_saved_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "canary-1")
    headers = {"Authorization": {"env": "SOME_KEY"}, "X-Plain": "canary-2"}
    config = run_config(tmp_path, lookup={"url": "https://x.example/mcp", "headers": headers})
    saved = config.to_toml()
    assert "canary" not in saved
    assert 'env = "SOME_KEY"' in saved
    (shared,) = make_plan(EvalConfig.from_dict(config.to_dict())).shared_tools
    assert {k: v.get_secret_value() for k, v in shared.config.headers.items()} == {
        "Authorization": "canary-1",
        "X-Plain": "canary-2",
    }
    assert "canary" not in json.dumps(repr(shared.config))
