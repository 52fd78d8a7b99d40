"""Other people's harnesses run where they can hold up only themselves (P08, T11): real engines, real sandboxes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.engine_kit import Kit, engine_kit, run_whole, script_config
from doubles.plugin_files import plugins
from vf_core.engine.plan import make_plan
from vf_core.errors import PluginError
from vf_core.harnesses.base import ExitMeaning, Harness, HarnessConfig
from vf_core.rollout import harness_calls
from vf_core.tasks import carrying, plugin_loops
from vf_core.tasks.carrying import Sink
from vf_core.tasks.plugin_loops import on_plugin_loop

HEAD = """
import asyncio, os, sys, threading, time
from vf_core.harnesses.base import ExitMeaning, Harness, HarnessConfig
from vf_core.runtimes.base import ProgramResult
__all__ = ["Odd"]
GO = threading.Event()
class OddConfig(HarnessConfig):
    odd: str = ""
class Odd(Harness[OddConfig]):
    SHELL = ["sh", "-c"]
    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, on_output):
        script = trace.task.data.prompt_text
        if script.startswith("python "):
            return await eval(script.removeprefix("python "), globals(), locals())
        return await runtime.run_program([*self.SHELL, script], {}, on_output=on_output)
"""


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[Path]:
    """A directory on the path with the harness `odd_harness`; it does what the task's prompt says."""
    with plugins(tmp_path, odd_harness=HEAD + HELPERS):
        yield tmp_path


HELPERS = """
async def block(event=None):
    GO.wait(60)
    return ProgramResult(0, "", "")
async def spin():
    while not GO.is_set():
        pass
    return ProgramResult(0, "", "")
async def stubborn(runtime):
    while True:
        try:
            await runtime.run(["sleep", "60"])
        except BaseException:
            pass
async def leave(code):
    sys.exit(code)
async def slow_sink(runtime, on_output):
    seen = []
    def mine(stream, data):
        assert threading.current_thread().name.startswith("plugins"), threading.current_thread()
        seen.append(data)
        on_output(stream, data)
    result = await runtime.run_program(["sh", "-c", "echo one; echo two >&2"], {}, on_output=mine)
    on_output("stdout", b"and three, %d" % (b"one" in b"".join(seen)))
    return result
async def bad_sink(runtime):
    def mine(stream, data):
        raise ValueError("no room")
    return await runtime.run_program(["echo", "x"], {}, on_output=mine)
async def code(n):
    return n
"""


def config(tmp_path: Path, *scripts: str, **settings: Any) -> Any:
    return script_config(tmp_path, scripts, env__agent__harness={"id": "odd-harness"}, **settings)


def go() -> threading.Event:
    import odd_harness  # type: ignore[import-not-found]

    event: threading.Event = odd_harness.GO
    return event


async def whole(settings: Any) -> Kit:
    kit, _ = await run_whole(settings)
    return kit


@pytest.mark.parametrize("way", ["block", "spin"])
async def test_p08_a_harness_that_blocks_holds_up_only_itself(odd: Path, way: str) -> None:
    """The others end while it blocks, and only then may it go on: this loop has been free all the time."""
    scripts = [f"python {way}()", "touch solved", f"python {way}()", "touch solved", "touch solved"]
    async with engine_kit(config(odd, *scripts)) as (kit, run):
        await kit.until(lambda: kit.state.totals.ended == 3)
        assert {r.reward for r in kit.state.rollouts.values() if r.status == "completed"} == {1.0}
        go().set()
        assert await run == 0
    assert kit.state.totals.completed == 5


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("python leave(3)", "harness 'odd-harness': RuntimeError: SystemExit: 3"),
        ("python code(7)", "harness 'odd-harness': launch gave a int, not a ProgramResult"),
        ("python bad_sink(runtime)", "harness 'odd-harness': ValueError: no room"),
        ("python 1/0", "harness 'odd-harness': ZeroDivisionError"),
    ],
)
async def test_what_a_harness_does_wrong_is_its_rollouts_error(odd: Path, script: str, told: str) -> None:
    kit = await whole(config(odd, script, "touch solved"))
    first, second = kit.rollout("0000-0"), kit.rollout("0001-0")
    assert (first.status, first.error_type) == ("error", "HarnessError")
    assert told in first.error
    assert (second.status, second.reward) == ("completed", 1.0)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise KeyError(code)", "exit_meaning: KeyError: 0"),
        ("return 'fine'", "exit_meaning gave 'fine', not an ExitMeaning"),
        ("return ExitMeaning('splendid', '')", "not an ExitMeaning"),
    ],
)
async def test_an_exit_code_without_a_meaning_is_kept(tmp_path: Path, body: str, told: str) -> None:
    with plugins(tmp_path, odd_harness=f"{HEAD}\n    def exit_meaning(self, code):\n        {body}\n"):
        kit = await whole(config(tmp_path, "touch solved"))
    rollout = kit.rollout()
    assert (rollout.status, rollout.error_type) == ("error", "HarnessError")
    assert told in rollout.error
    assert rollout.program is not None
    assert (rollout.program.code, rollout.program.meaning) == (0, "exit 0")


@pytest.mark.parametrize(
    ("code", "text", "told"),
    [
        (7, "gave up", "gave up (7)"),
        (7, "7: gave up", "7: gave up"),
        (7, "word 77", "word 77 (7)"),
        (-9, "exit -9 killed", "exit -9 killed"),
        (137, "", "exit 137 killed"),
        (7, "two\nlines \x1b[31m" + "x" * 99, "two lines " + "x" * 38 + " (7)"),
    ],
)
async def test_whatever_it_calls_an_exit_the_code_is_told(code: int, text: str, told: str) -> None:
    class Wordy(Harness[HarnessConfig]):
        async def launch(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError

        def exit_meaning(self, code: int) -> ExitMeaning:
            return ExitMeaning("declined", text)

    meaning = await harness_calls.exit_meaning(Wordy(HarnessConfig()), code)
    assert (meaning.kind, meaning.text) == ("declined", told)


async def test_its_output_comes_in_order_from_wherever_it_is_given(odd: Path) -> None:
    """Its own sink is called on its own loop, ours from any."""
    kit = await whole(config(odd, "python slow_sink(runtime, on_output)"))
    assert kit.rollout().status == "completed", kit.rollout().error
    kept = (kit.run_dir.logs / "0000-0" / "attempt-1.stdout.log").read_text()
    assert kept == "one\nand three, 1"


async def test_t11_one_that_swallows_its_cancellation_ends_with_the_stop(odd: Path) -> None:
    """Nothing more is done in its sandbox, and it is not tried again."""
    settings = config(odd, "python stubborn(runtime)", retries__rollout={"max_retries": 3})
    async with engine_kit(settings) as (kit, run):
        await kit.running()
        await kit.engine.command("stop", ("0000-0",), {}, "test")
        assert await asyncio.wait_for(run, 60) == 0
    assert (kit.rollout().status, kit.rollout().attempt) == ("stopped", 1)
    assert kit.state.unconfirmed == set()


CHANGING = """
from vf_core.harnesses.base import Harness, HarnessConfig
from vf_core.judges import Judge, JudgeConfig
from vf_core.runtimes.base import ProgramResult
from vf_core.tasks import Task, TaskData, Taskset, TasksetConfig
class Config(HarnessConfig):
    seen: list[str] = []
class Changing(Harness[Config]):
    def validate(self):
        self.config.seen.append("made")
    async def setup(self, runtime):
        self.mine = runtime.name
    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, on_output):
        self.config.seen.append(trace.id)
        self.config.env["LEAK"] = trace.id
        ctx.sampling.model_extra["leak"] = trace.id
        trace.info["harness"] = [self.mine == runtime.name, *self.config.seen, *self.config.env]
        return ProgramResult(0, "", "")
class ScoreConfig(JudgeConfig):
    seen: list[str] = []
class ChangingJudge(Judge[float, ScoreConfig]):
    def validate(self):
        self.config.headers["x-leak"] = "made"
    async def score(self, trace):
        self.config.seen.append(trace.id)
        return 1 / len(self.config.seen)
class LoadConfig(TasksetConfig):
    seen: list[int] = []
class ChangingTasks(Taskset[Task, LoadConfig]):
    def load(self):
        for i in range(32):
            self.config.seen.append(i)
            yield Task(TaskData(idx=i, prompt="x"), self.config.task)
__all__ = ["Changing", "ChangingJudge", "ChangingTasks"]
"""


async def test_x11_what_plugins_change_on_their_configs_stays_with_them(tmp_path: Path) -> None:
    """X11: 32 rollouts of a harness, a judge and a taskset that write on whatever they are given."""
    with plugins(tmp_path, changing=CHANGING):
        judges = {"judges": [{"id": "changing", "model": "none"}]}
        settings = script_config(
            tmp_path,
            [],
            env__taskset={"id": "changing", "task": judges},
            env__agent__harness={"id": "changing"},
        )
        before = settings.to_toml()
        kit, code = await run_whole(settings)
    assert (code, {r.reward for r in kit.state.rollouts.values()}) == (0, {1.0})
    records = kit.records()
    assert [r["info"]["harness"] for r in records] == [[True, "made", r["id"], "LEAK"] for r in records]
    assert settings.to_toml() == kit.run_dir.config.read_text() == before


REFUSING = """
from vf_core.harnesses.base import Harness, HarnessConfig
from vf_core.tasks import Task, TaskData, Taskset, TasksetConfig
class Refusing(Harness[HarnessConfig]):
    def validate(self):
        IN_VALIDATE
    def resolve_prompt(self, task):
        IN_PROMPT
        return super().resolve_prompt(task)
    async def launch(self, *args, **kwargs):
        pass
class RefusingTasks(Taskset[Task, TasksetConfig]):
    def __init__(self, config):
        super().__init__(config)
        IN_INIT
    def load(self):
        IN_LOAD
        return [Task(TaskData(idx=0, prompt="x"), self.config.task)]
__all__ = ["Refusing", "RefusingTasks"]
"""


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("IN_VALIDATE", "env.agent.harness: harness 'refusing' can't be made: "),
        ("IN_PROMPT", "env.agent.harness: harness 'refusing': task 0: "),
        ("IN_INIT", "env.taskset: taskset 'refusing' did not load: "),
        ("IN_LOAD", "env.taskset: taskset 'refusing' did not load: "),
    ],
)
async def test_whatever_a_plugin_raises_before_the_run_is_told_as_its_own(
    tmp_path: Path, place: str, told: str
) -> None:
    """On the thread where an engine plans."""
    for raises in ("KeyError('k')", "SystemExit(3)", "KeyboardInterrupt()", "GeneratorExit()"):
        source = REFUSING.replace(place, f"raise {raises}")
        for other in ("IN_VALIDATE", "IN_PROMPT", "IN_INIT", "IN_LOAD"):
            source = source.replace(other, "pass")
        with plugins(tmp_path, refusing=source):
            settings = script_config(
                tmp_path, [], env__taskset={"id": "refusing"}, env__agent__harness={"id": "refusing"}
            )
            with pytest.raises(PluginError) as e:
                await asyncio.to_thread(make_plan, settings)
        assert str(e.value).startswith(told + raises.partition("(")[0])


# -- the parts ---------------------------------------------------------------------------------------------------


async def test_what_blocks_gets_a_loop_to_itself_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other they would take a detection each; known, they all begin at once."""
    monkeypatch.setattr(plugin_loops, "BLOCKED_SECONDS", 0.05)
    began, release = threading.Semaphore(0), threading.Event()

    async def block() -> None:
        began.release()
        release.wait(60)

    blocked = [asyncio.create_task(on_plugin_loop(block(), block.__code__, "block")) for _ in range(30)]
    for _ in blocked:
        assert await asyncio.to_thread(began.acquire, timeout=60)
    release.set()
    await asyncio.gather(*blocked)


async def test_what_is_held_up_fails_and_names_what_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that blocks for ever takes nobody with it: those that were under way on its loop, too, come to an end."""
    monkeypatch.setattr(plugin_loops, "HELD_SECONDS", 0.2)
    waits, release = threading.Event(), threading.Event()

    async def wait() -> None:
        waits.set()
        await asyncio.sleep(3600)

    async def block() -> str:
        release.wait(60)
        return "late"

    held = asyncio.create_task(on_plugin_loop(wait(), wait.__code__, "@reward slow of T"))
    assert await asyncio.to_thread(waits.wait, 60)
    blocked = asyncio.create_task(on_plugin_loop(block(), block.__code__, "@reward bad of T"))
    with pytest.raises(RuntimeError, match="held up: @reward bad of T blocks the event loop"):
        await asyncio.wait_for(held, 60)
    assert not blocked.done()
    release.set()
    assert await blocked == "late"


async def test_a_sink_is_waited_for_by_others_and_never_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrying, "PENDING_LIMIT", 1000)
    got: list[bytes] = []
    sink = Sink(lambda stream, data: got.append(data))
    writer = threading.Thread(
        target=lambda: [sink("stdout", b"%06d" % n * 100) for n in range(50)], daemon=True
    )
    writer.start()
    while writer.is_alive():
        assert sink._pending <= 1000
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert b"".join(got) == b"".join(b"%06d" % n * 100 for n in range(50))
    with pytest.raises(TypeError, match="on_output takes"):
        sink("stdout", "text")  # type: ignore[arg-type]
    sink.close()
    sink("stdout", b"late")
    assert got[-1] != b"late"


async def test_a_sink_of_others_that_is_too_slow_loses_output_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(carrying, "PENDING_LIMIT", 100)
    got: list[bytes] = []
    _, _, (sink,) = carrying.carried_sinks((lambda stream, data: got.append(data),), {})
    for n in range(30):
        sink("stdout", b"%010d" % n)
    sink.close()
    for n in range(30, 33):
        sink("stdout", b"%010d" % n)
    sink.close()
    text = b"".join(got)
    assert b"200 bytes lost" in text
    assert text.endswith(b"".join(b"%010d" % n for n in range(30, 33)))
