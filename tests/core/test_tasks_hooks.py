"""Hooks: found by their marks, called with what they ask for, away from the engine's loop (P08, X11, T11)."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from doubles.traces import Row, blank
from vf_core.errors import PluginError, SandboxError, TaskError
from vf_core.tasks import State, Task, TaskConfig, TaskData, group_reward, metric, plugin_loops, reward, stop
from vf_core.tasks.base import config_type, data_type, state_type
from vf_core.tasks.calls import in_thread, invoke
from vf_core.tasks.decorators import check_hooks, hooks
from vf_core.tasks.scoring import group_rewards, stop_hooks


class Box:
    """A sandbox as far as hooks are concerned: its coroutines belong to the loop of the test."""

    label = "box"

    def __init__(self) -> None:
        self.home = asyncio.get_running_loop()
        self.ran: list[list[str]] = []
        self.cancelled = asyncio.Event()
        self.hanging = asyncio.Event()

    async def run(self, argv: list[str]) -> str:
        assert asyncio.get_running_loop() is self.home
        self.ran.append(argv)
        return "out"

    async def hang(self) -> None:
        self.hanging.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@asynccontextmanager
async def beating() -> AsyncIterator[Callable[[], int]]:
    """A heartbeat of the loop; what is yielded tells how often it beat."""
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0)
            beats += 1

    task = asyncio.create_task(beat())
    try:
        yield lambda: beats
    finally:
        task.cancel()


# -- marks -------------------------------------------------------------------------------------------------------


class Base(Task[Row, State, TaskConfig]):
    @reward
    async def b(self) -> float:
        return 1.0

    @reward(weight=0.5, priority=2)
    async def z(self) -> float:
        return 1.0

    @metric
    def m(self) -> float:
        return 1.0

    @stop(priority=1)
    async def enough(self) -> bool:
        return False

    @group_reward()
    async def g(self, traces: list[Any]) -> list[float]:
        return [0.0] * len(traces)

    @property
    def trap(self) -> None:
        raise AssertionError("a property must not run")


class Derived(Base):
    async def b(self) -> float:  # no longer a reward
        return 0.0

    @reward(weight=3)
    async def z(self) -> float:
        return 1.0

    @reward()
    async def a(self) -> float:
        return 1.0


def test_hooks_are_found_by_their_marks_in_order() -> None:
    base, derived = Base(Row(idx=0)), Derived(Row(idx=0))
    assert [(h.name, h.weight) for h in hooks(base, "reward")] == [("z", 0.5), ("b", 1.0)]
    assert [(h.name, h.weight) for h in hooks(derived, "reward")] == [("a", 1.0), ("z", 3.0)]
    assert [h.name for h in hooks(derived, "metric")] == ["m"]
    assert [h.name for h in group_rewards(derived)] == ["g"]
    assert hooks(derived, "reward")[0].what == "@reward a of Derived"
    assert hooks(object(), "metric") == []


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), "1", None, True])
def test_a_weight_is_a_finite_number(weight: Any) -> None:
    with pytest.raises(TypeError, match="weight"):
        reward(weight=weight)


def test_the_types_that_a_task_declares() -> None:
    class MyState(State):
        n: int = 0

    class MyConfig(TaskConfig):
        k: int = 3

    class Mine(Task[Row, MyState, MyConfig]):
        pass

    class Grand(Mine):
        pass

    assert (data_type(Grand), state_type(Grand), config_type(Grand)) == (Row, MyState, MyConfig)
    assert Grand(Row(idx=0)).config.k == 3
    assert (data_type(Task), state_type(Task), config_type(Task)) == (TaskData, State, TaskConfig)


@pytest.mark.parametrize(
    ("hook", "hint"),
    [
        ("@reward\n async def r(self, trase): ...", "did you mean 'trace'?"),
        ("@reward\n def r(self, response): ...", "it can have task, trace, runtime"),
        ("@stop\n def r(self, trace, runtime): ...", "it can have task, trace"),
        ("async def setup(self, sandbox): ...", "it can have task, trace, runtime"),
    ],
)
def test_a_hook_that_asks_for_something_else_is_refused(hook: str, hint: str) -> None:
    scope: dict[str, Any] = {"Task": Task, "reward": reward, "stop": stop}
    exec(f"class Mine(Task):\n {hook}", scope)
    with pytest.raises(PluginError, match=r"of Mine asks for an argument") as e:
        check_hooks(scope["Mine"])
    assert e.value.hint == hint


def test_good_hooks_pass() -> None:
    class Fine(Base):
        @reward
        async def everything(self, task: Any, trace: Any, runtime: Any, extra: int = 0, **more: Any) -> float:
            return 0.0

        @reward
        @staticmethod
        def alone() -> float:
            return 0.0

    check_hooks(Fine)


# -- calls -------------------------------------------------------------------------------------------------------


async def test_arguments_by_name() -> None:
    class Mine(Task[Row]):
        async def some(self, runtime: Any, nothing: int = 7) -> Any:
            return runtime, nothing

        async def all_of_them(self, **given: Any) -> Any:
            return sorted(given)

        async def wrong(self, other: int) -> None: ...

    task = Mine(Row(idx=0))
    assert await invoke(task.some, {"runtime": None, "trace": 1}) == (None, 7)
    assert await invoke(task.all_of_them, {"runtime": None, "trace": 1}) == ["runtime", "trace"]
    with pytest.raises(TaskError, match="asks for 'other'"):
        await invoke(task.wrong, {"trace": 1}, what="setup of Mine")


@pytest.mark.parametrize("kind", ["plain function", "coroutine"])
async def test_blocking_code_does_not_hold_up_the_loop(kind: str) -> None:
    """P08: the code waits for a beat of the loop that it would be blocking."""
    release = threading.Event()

    class Mine(Task[Row]):
        def plain(self) -> bool:
            return release.wait(60)

        async def coroutine(self) -> bool:
            return release.wait(60)

    task = Mine(Row(idx=0))
    call = asyncio.create_task(invoke(task.plain if kind == "plain function" else task.coroutine, {}))
    async with beating() as beats:
        while beats() < 50:
            await asyncio.sleep(0)
        assert not call.done()
        release.set()
        assert await call is True


async def test_code_that_spins_does_not_hold_up_the_loop() -> None:
    """P08."""
    release = threading.Event()

    class Mine(Task[Row]):
        async def spin(self) -> int:
            n = 0
            while not release.is_set():
                n += 1
            return n

    call = asyncio.create_task(invoke(Mine(Row(idx=0)).spin, {}))
    async with beating() as beats:
        while beats() < 20:
            await asyncio.sleep(0)
        release.set()
    assert await call >= 0


async def test_one_that_blocks_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """P08: other rollouts' hooks get another loop."""
    monkeypatch.setattr(plugin_loops, "BLOCKED_SECONDS", 0.05)
    release, began = threading.Event(), threading.Event()

    class Mine(Task[Row]):
        async def block(self) -> str:
            began.set()
            release.wait(60)
            return "late"

        async def quick(self) -> str:
            await asyncio.sleep(0)
            return "done"

    task = Mine(Row(idx=0))
    blocked = asyncio.create_task(invoke(task.block, {}))
    await in_thread(began.wait, 10)
    assert await asyncio.gather(*(invoke(task.quick, {}) for _ in range(5))) == ["done"] * 5
    assert not blocked.done()
    release.set()
    assert await blocked == "late"


async def test_the_sandbox_is_used_on_its_own_loop() -> None:
    class Mine(Task[Row]):
        async def hook(self, runtime: Any) -> Any:
            assert isinstance(runtime, Box)
            assert asyncio.get_running_loop() is not runtime.home
            runtime.label = "changed"
            self.kept = runtime
            return await runtime.run(["a", "b"]), runtime.label

    box, task = Box(), Mine(Row(idx=0))
    assert await invoke(task.hook, {"runtime": box}) == ("out", "changed")
    assert (box.ran, box.label) == ([["a", "b"]], "changed")
    with pytest.raises(SandboxError, match="time is over"):
        await task.kept.run(["late"])
    assert len(box.ran) == 1


async def test_a_cancelled_call_cancels_what_it_does_in_the_sandbox() -> None:
    """T11."""

    class Mine(Task[Row]):
        async def hook(self, runtime: Any) -> None:
            await runtime.hang()

    box = Box()
    call = asyncio.create_task(invoke(Mine(Row(idx=0)).hook, {"runtime": box}))
    async with asyncio.timeout(60):
        await box.hanging.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await box.cancelled.wait()


async def test_code_that_swallows_its_cancellation_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """T11: it ends as cancelled, and can do nothing more in the sandbox."""
    monkeypatch.setattr(plugin_loops, "CANCEL_SECONDS", 0.05)
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    go_on, began = threading.Event(), threading.Event()
    home = asyncio.get_running_loop()

    class Mine(Task[Row]):
        async def hook(self, runtime: Any) -> None:
            try:
                began.set()
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                await asyncio.to_thread(go_on.wait, 30)
            try:
                await runtime.run(["again"])
            except SandboxError as e:
                home.call_soon_threadsafe(told.set_result, str(e))

    box = Box()
    call = asyncio.create_task(invoke(Mine(Row(idx=0)).hook, {"runtime": box}))
    async with asyncio.timeout(60):
        await in_thread(began.wait, 30)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        go_on.set()
        assert "time is over" in await told
    assert box.ran == []


async def test_a_cancelled_thread_is_not_waited_for() -> None:
    release = threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await in_thread(release.wait, 30)
    release.set()


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration()]
)
async def test_code_cannot_end_the_process_or_its_caller(error: BaseException) -> None:
    class Mine(Task[Row]):
        def plain(self) -> None:
            raise error

        async def coroutine(self) -> None:
            raise error

    task = Mine(Row(idx=0))
    for fn in (task.plain, task.coroutine):
        with pytest.raises(RuntimeError):
            await invoke(fn, {})

    class Well(Task[Row]):
        async def fine(self) -> int:
            return 1

    assert await invoke(Well(Row(idx=0)).fine, {}) == 1


async def test_a_plain_function_may_return_an_awaitable() -> None:
    class Mine(Task[Row]):
        def lazy(self) -> Any:
            async def later() -> int:
                return 5

            return later()

    assert await invoke(Mine(Row(idx=0)).lazy, {}) == 5


async def test_context_variables_are_seen() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")
    variable.set("here")

    class Mine(Task[Row]):
        def plain(self) -> str:
            return variable.get()

        async def coroutine(self) -> str:
            return variable.get()

    task = Mine(Row(idx=0))
    assert [await invoke(task.plain, {}), await invoke(task.coroutine, {})] == ["here", "here"]


async def test_hooks_of_the_base_class_cost_nothing() -> None:
    threads = threading.active_count()
    task = Task(Row(idx=0))
    assert await invoke(task.setup, {"trace": None, "runtime": None}) is None
    assert await invoke(task.finalize, {}) is None
    assert threading.active_count() == threads


def test_no_thread_keeps_the_process_alive() -> None:
    asyncio.run(invoke(Derived(Row(idx=0)).a, {}))
    plugins = [thread for thread in threading.enumerate() if thread.name.startswith("plugins ")]
    assert plugins
    assert all(thread.daemon for thread in plugins)


# -- stop --------------------------------------------------------------------------------------------------------


async def test_stop_hooks_know_their_names_and_share_the_rollouts_task() -> None:
    class Mine(Task[Row]):
        asked = 0

        @stop
        def third_time(self, trace: Any) -> bool:
            self.asked += 1
            return self.asked == 3

        @stop
        async def never(self) -> None:
            return None

    task = Mine(Row(idx=0))
    never, third = stop_hooks(task)
    assert (never.__name__, third.__name__) == ("never", "third_time")
    one, two = blank(), blank()
    assert [await third(one) for _ in range(3)] == [False, False, True]
    assert await third(two) is False
    assert await never(one) is False
    assert task.asked == 0
