"""Having an image on an engine before a container of it is asked for: looked for, pulled once for all who wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

from vf_core.errors import SandboxError
from vf_core.runtimes.docker.client import Engine, EngineError
from vf_core.text import bound, clean

Remark = Callable[[str], None]

# A pull that reports nothing for this long is stuck.
STALL: Final = 300.0
_PACE: Final = 1.0


@dataclass(eq=False, slots=True)
class _Pull:
    """A pull under way, and who wants to hear of it."""

    task: asyncio.Task[None] | None = None
    said: str = ""
    waiting: list[Remark] = field(default_factory=list)


_pulls: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], _Pull]] = WeakKeyDictionary()


async def ensure(engine: Engine, name: str, policy: str, remark: Remark) -> dict[str, Any]:
    """An image's description, after a pull when `policy` ("missing", "always", "never") and its absence ask for that.

    Raises `SandboxError` naming the image when the engine does not have it then.
    """
    found = await engine.image(name)
    if policy == "never" or (found is not None and policy == "missing"):
        if found is None:
            raise SandboxError(
                f"image {name} is not on docker engine {engine.account}, and pulling is off",
                hint=f'docker pull {name}, or runtime.pull = "missing"',
            )
        return found
    await _pulled(engine, name, remark)
    found = await engine.image(name)
    if found is None:
        raise _cannot_pull(engine, name, "the pull ended without it")
    return found


def _cannot_pull(engine: Engine, name: str, why: str) -> SandboxError:
    return SandboxError(
        f"image {name} is not on docker engine {engine.account} and could not be pulled: {why}",
        hint=f"look at its name; docker pull {name} by hand, after docker login for a private one; "
        "or build it there",
    )


async def _pulled(engine: Engine, name: str, remark: Remark) -> None:
    """Join the pull of this image, or begin it; it ends when nobody waits for it any more."""
    pulls = _pulls.setdefault(asyncio.get_running_loop(), {})
    key = (engine.account, name)
    pull = pulls.get(key)
    if pull is None:
        pull = pulls[key] = _Pull()
        pull.task = asyncio.create_task(_pull(engine, name, pull), name=f"pull {name}")
        pull.task.add_done_callback(lambda _: _forget(pulls, key, pull))
    assert pull.task is not None  # noqa: S101 - for the type checker
    pull.waiting.append(remark)
    remark(pull.said or f"image pull {name}")
    try:
        await asyncio.wait({pull.task})
        pull.task.result()
    finally:
        pull.waiting.remove(remark)
        if not pull.waiting and not pull.task.done():
            _forget(pulls, key, pull)
            pull.task.cancel()


def _forget(pulls: dict[tuple[str, str], _Pull], key: tuple[str, str], pull: _Pull) -> None:
    if pulls.get(key) is pull:
        del pulls[key]


async def _pull(engine: Engine, name: str, pull: _Pull) -> None:
    progress = Progress()
    told = 0.0
    try:
        async with asyncio.timeout(STALL) as limit, engine.pulling(name) as reports:
            async for report in reports:
                limit.reschedule(asyncio.get_running_loop().time() + STALL)
                progress.add(report)
                now = time.monotonic()
                if now - told >= _PACE and progress.text() != pull.said:
                    told, pull.said = now, progress.text()
                    for remark in list(pull.waiting):
                        remark(pull.said)
    except EngineError as e:
        if not e.sent:
            raise
        raise _cannot_pull(engine, name, e.message.partition(f"pull image {name}: ")[2] or e.message) from e
    except TimeoutError as e:
        raise _cannot_pull(engine, name, f"nothing came for {STALL:g} s") from e


class Progress:
    """What a pull's reports come to, layer by layer."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}
        self._done: set[str] = set()
        self._last = ""

    def add(self, report: Mapping[str, Any]) -> None:
        """Take one report."""
        layer, status = str(report.get("id") or ""), str(report.get("status") or "")
        self._last = bound(" ".join(clean(status).split()), 60)
        detail = report.get("progressDetail") or {}
        if not layer or not isinstance(detail, Mapping):
            return
        if status in ("Download complete", "Pull complete", "Already exists", "Extracting"):
            self._done.add(layer)
        current, total = detail.get("current"), detail.get("total")
        if status == "Downloading" and isinstance(current, int) and isinstance(total, int) and total > 0:
            self._layers[layer] = (min(current, total), total)

    def text(self) -> str:
        """For the screen: `image pull 40 %` once sizes are known."""
        if not self._layers:
            return f"image pull {self._last}".rstrip()
        got = sum(total if key in self._done else now for key, (now, total) in self._layers.items())
        return f"image pull {100 * got // sum(total for _, total in self._layers.values())} %"
