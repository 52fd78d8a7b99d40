"""For the tests of plugins: load one as a run does, and run it with a scripted model, without a screen.

    from vf_core.testing import options, run_eval

    def test_a_right_answer_counts(tmp_path):
        config = {"env": {"taskset": {"id": "my-tasks"}, "agent": {"harness": {"id": "null"}}}}
        ran = run_eval(config, says="Paris", directory=tmp_path)
        assert ran.errors == []
        assert ran.rewards == [1.0]

Everything is real but the model: sandboxes, the agent program, the interception server, scoring, the files.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from vf_core.plugins import Kind, config_class, load_class

if TYPE_CHECKING:
    from vf_core.eval_config import EvalConfig
    from vf_core.events.state import RunState
    from vf_core.scripted.scenario import Scenario
    from vf_core.trace.record import Trace

__all__ = ["Ran", "Says", "load_class", "options", "run_eval", "run_eval_async", "scenario"]

TIMEOUT = 120.0
"""Seconds that a run in a test may take by default."""

Turn = str | Mapping[str, Any]
"""One turn of the model: its text, or a step of a scenario (`text`, `calls`, `refusal`, `fault`, …)."""
Says: TypeAlias = "str | Sequence[Turn] | Mapping[str, str | Sequence[Turn]] | Path | Scenario"
"""What the model says: one reply to everything, a reply a turn, either by a pattern that the conversation begins with
(searched in its first user message; the first that matches counts), a scenario file, or a `Scenario`."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that is over. `traces` are its rollouts' last ones, in the order of tasks and samples; `bodies` what the
    model was asked, in order of arrival."""

    directory: Path
    exit_code: int
    traces: list[Trace[Any, Any]]
    state: RunState
    bodies: list[dict[str, Any]]

    @property
    def rewards(self) -> list[float | None]:
        """Each rollout's reward; None: it is unscored."""
        return [trace.score for trace in self.traces]

    @property
    def errors(self) -> list[str]:
        """What went wrong, as `type: message`, of all rollouts."""
        return [f"{error.type}: {error.message}" for trace in self.traces for error in trace.errors]

    def output(self, rollout: int = 0, stream: str = "stdout") -> str:
        """What the agent program of a rollout printed."""
        extra = self.traces[rollout].extra
        name = f"attempt-{extra['attempt']}.{stream}.log"
        return (self.directory / "logs" / str(extra["rollout"]) / name).read_text(errors="replace")


def options(kind: Kind, id: str, **values: Any) -> Any:
    """The options of a plugin, of its own config class and checked by it. Raises `PluginError` for a plugin that
    does not fit, pydantic's `ValidationError` for values that don't."""
    return config_class(load_class(kind, id)).model_validate({"id": id, **values})


def scenario(says: Says) -> Scenario:
    """The scripted model that says what `says` tells. Raises `ConfigError` for a file that is no scenario."""
    from vf_core.scripted.scenario import Scenario, load_scenario

    if isinstance(says, Scenario):
        return says
    if isinstance(says, Path):
        return load_scenario(says)
    by_pattern = says.items() if isinstance(says, Mapping) else [(None, says)]
    rules = [
        {"name": f"rule {number}", "step": _steps(turns)} | ({} if task is None else {"task": task})
        for number, (task, turns) in enumerate(by_pattern)
    ]
    return Scenario.model_validate({"rule": rules})


def _steps(turns: str | Sequence[Turn]) -> list[dict[str, Any]]:
    listed = [turns] if isinstance(turns, str) else list(turns)
    steps: list[dict[str, Any]] = [{"text": turn} if isinstance(turn, str) else dict(turn) for turn in listed]
    steps[-1].setdefault("repeat", True)
    return steps


def run_eval(
    config: EvalConfig | Mapping[str, Any] | Path | str,
    *,
    says: Says,
    directory: Path,
    overrides: Sequence[str] = (),
    timeout: float = TIMEOUT,
) -> Ran:
    """Run an eval to its end and give what came of it.

    `config` is a file, its tables, or a config; `overrides` are options as on the command line (files and tables
    only). `says` stands for the model of the agent and of judges (see `Says`). All that is written goes below
    `directory`. Raises `ConfigError` for a config that is refused, TimeoutError after `timeout` seconds, when the run
    has been ended. It can't be called where an event loop runs: there use `run_eval_async`.
    """
    return asyncio.run(
        run_eval_async(config, says=says, directory=directory, overrides=overrides, timeout=timeout)
    )


async def run_eval_async(
    config: EvalConfig | Mapping[str, Any] | Path | str,
    *,
    says: Says,
    directory: Path,
    overrides: Sequence[str] = (),
    timeout: float = TIMEOUT,
) -> Ran:
    """As `run_eval`, for tests that are coroutines."""
    from vf_core.engine.session import EngineSession
    from vf_core.runs.layout import RunDir
    from vf_core.scripted.server import ScriptedServer

    loaded = await asyncio.to_thread(_load, config, overrides)
    with _state_below(directory):
        async with ScriptedServer(scenario(says), speed=0, record=True) as model:
            client = loaded.client.model_copy(update={"base_url": model.base_url, "headers": {}})
            ready = loaded.with_model(model.scenario.model, client)
            ready = ready.model_copy(update={"output_dir": (directory / "outputs").absolute()})
            run_dir = RunDir.create(ready.output_dir, ready.run_name)
            async with EngineSession.open(ready, run_dir, serve=False) as session:
                run = asyncio.ensure_future(session.run())
                _, late = await asyncio.wait({run}, timeout=timeout)
                if late:
                    await session.engine.command(
                        "shutdown", (), {"reason": "the test's time is over"}, "test"
                    )
                code = await run
                state = session.engine.state
    if late:
        raise TimeoutError(f"the run took more than {timeout:g} s; see {run_dir.path}")
    return Ran(run_dir.path, code, _traces(run_dir.traces), state, model.bodies)


def _load(config: EvalConfig | Mapping[str, Any] | Path | str, overrides: Sequence[str]) -> EvalConfig:
    from vf_core.eval_config import EvalConfig

    if isinstance(config, EvalConfig):
        return config
    if isinstance(config, Mapping):
        return EvalConfig.from_dict(dict(config), overrides=overrides)
    return EvalConfig.load(Path(config), overrides)


@contextmanager
def _state_below(directory: Path) -> Iterator[None]:
    """The test's sandboxes and runs are not listed among the user's own."""
    name, place = "XDG_STATE_HOME", directory.absolute() / "state"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = os.environ.get(name)
    os.environ[name] = str(place)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def _traces(path: Path) -> list[Trace[Any, Any]]:
    from vf_core.trace.reader import Torn, read_records

    last: dict[tuple[int, int], Trace[Any, Any]] = {}
    for record in read_records(path):
        if not isinstance(record, Torn):
            trace = record.trace()
            last[trace.extra["position"], trace.extra["sample"]] = trace
    return [last[at] for at in sorted(last)]
