"""Whatever dies and whenever: after `cleanup`, nothing of ours is left anywhere, and a bystander is untouched."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.command_line import ARGV, Home, alive, wait_for
from doubles.leaks import Docker, Modal, Place, Prime
from doubles.pty_driver import PtyProcess

ROLLOUTS = 3


class Story:
    """A provider, a user's home, and the runs that were started in it."""

    def __init__(self, place: Place, home: Home, runs: set[str], seed: int) -> None:
        self.place, self.home, self.runs = place, home, runs
        self.random = random.Random(seed)
        self.seconds = f"9{seed}{os.getpid()}"
        self.count = 0
        self.before: set[str] = set()

    def config(self) -> Path:
        self.count += 1
        self.before = self.place.ours()
        script = f"sleep {self.seconds}{self.count} & exec sleep {self.seconds}{self.count}"
        file = self.home.config([script] * ROLLOUTS, f"run-{self.count}.toml", f"max_concurrent = {ROLLOUTS}")
        file.write_text(file.read_text() + self.place.runtime())
        return file

    def start(self) -> Run:
        """A run without a screen; its engine is up when this returns."""
        done = self.home("run", self.config(), "--detach", "--json")
        assert done.returncode == 0, done.stderr
        return self.run(Path(json.loads(done.stdout.splitlines()[-1])["dir"]))

    def run(self, path: Path) -> Run:
        run = Run(self, path)
        self.runs.add(run.id)
        return run

    def some(self, run: Run) -> None:
        """Wait until a random number of the run's sandboxes exist."""
        wanted = self.random.randint(1, ROLLOUTS)
        wait_for(lambda: len(self.place.ours() - self.before) >= wanted, f"{wanted} sandboxes of {run.id}")

    def programs(self) -> list[int]:
        """The agent programs of the latest run, wherever they run: containers' processes are seen from here."""
        mark = f"{self.seconds}{self.count}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().split(b"\0")
            except OSError:
                continue
            if words[:1] == [b"sleep"] and mark in words:
                found.append(int(entry.parent.name))
        return found


class Run:
    """A run and its engine."""

    def __init__(self, story: Story, path: Path) -> None:
        self.story, self.path = story, path
        self.facts: dict[str, Any] = wait_for(self._facts, "engine.json")
        self.id, self.pid = str(self.facts["run"]), int(self.facts["pid"])

    def _facts(self) -> Any:
        try:
            return json.loads((self.path / "engine.json").read_text())
        except (OSError, ValueError):
            return None

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if alive(self.pid):
            os.kill(self.pid, number)

    def ended(self) -> None:
        wait_for(lambda: not alive(self.pid), f"the end of engine {self.pid}", 90)


def engine_killed(story: Story) -> None:
    run = story.start()
    story.some(run)
    run.kill()
    run.ended()


def engine_killed_inside_create(story: Story) -> None:
    story.place.fault(story.place.create, "hang_after", seconds=20.0, times=ROLLOUTS)
    run = story.start()
    story.some(run)
    run.kill()
    run.ended()
    story.place.calm()


def cancelled_inside_create(story: Story) -> None:
    story.place.fault(story.place.create, "hang_after", seconds=3.0, times=2)
    run = story.start()
    story.some(run)
    done = story.home("stop", run.id, "all", "--confirm")
    assert done.returncode in (0, 4), done.stderr
    story.place.calm()
    run.kill(signal.SIGTERM)
    run.ended()


def program_killed(story: Story) -> None:
    run = story.start()
    for pid in wait_for(story.programs, "programs"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.kill(story.random.choice([signal.SIGTERM, signal.SIGKILL]))
    run.ended()


def terminated(story: Story) -> None:
    run = story.start()
    story.some(run)
    for _ in range(story.random.randint(1, 3)):
        run.kill(signal.SIGTERM)
    run.ended()
    assert story.place.ours() <= story.before
    assert "Traceback" not in (run.path / "logs" / "engine.log").read_text()


def killed_while_cleaning_up(story: Story) -> None:
    run = story.start()
    story.some(run)
    run.kill(signal.SIGINT)
    journal = run.path / "events.jsonl"
    wait_for(lambda: '"stopping"' in journal.read_text() or not alive(run.pid), "the teardown")
    run.kill()
    run.ended()


def screen_killed(story: Story) -> None:
    known = set((story.home.work / "outputs").rglob("engine.json"))
    with PtyProcess(
        [*ARGV, "run", str(story.config())], env=story.home.env, cwd=story.home.work, size=(100, 30)
    ) as screen:
        screen.wait_for("program")
        new = set((story.home.work / "outputs").rglob("engine.json")) - known
        run = story.run(new.pop().parent)
        story.some(run)
        os.kill(screen.pid, signal.SIGKILL)
        screen.wait_exit()
    assert alive(run.pid)
    wait_for(story.programs, "the programs that go on")
    run.kill()
    run.ended()


def provider_resets(story: Story) -> None:
    story.place.fault(story.place.create, "reset_after")
    story.place.fault(story.place.delete, "reset_after", times=2)
    run = story.start()
    story.some(run)
    run.kill(signal.SIGTERM)
    run.ended()
    story.place.calm()


ALWAYS = [engine_killed, program_killed, terminated, killed_while_cleaning_up, screen_killed]
WITH_FAULTS = [*ALWAYS, engine_killed_inside_create, cancelled_inside_create, provider_resets]


@pytest.fixture(params=["docker", "prime", "modal"])
def story(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Story]:
    runs: set[str] = set()
    makers: dict[str, Callable[[], Place]] = {"docker": lambda: Docker(runs), "prime": Prime, "modal": Modal}
    place = makers[request.param]()
    home = Home(tmp_path, place.env)
    try:
        yield Story(place, home, runs, seed=["docker", "prime", "modal"].index(request.param))
    finally:
        home.stop_all()
        place.close()


@pytest.mark.timeout(300)
def test_nothing_is_left_whatever_dies(story: Story) -> None:
    kills = WITH_FAULTS if story.place.create else ALWAYS
    for kill in story.random.sample(kills, len(kills)):
        kill(story)
    listed = story.home("sandboxes", "--json", "--provider", story.place.kind)
    known = {s["id"] for s in json.loads(listed.stdout)["sandboxes"] if s["run"] in story.runs}
    assert story.place.ours() <= known
    done = story.home("cleanup", "--yes", "--json", *sorted(story.runs))
    assert done.returncode == 0, done.stdout + done.stderr
    assert story.place.ours() == set()
    assert story.place.bystander_lives()
    assert story.programs() == []
    again = story.home("cleanup", "--yes", "--json", "--provider", story.place.kind, *sorted(story.runs))
    assert again.returncode == 0, again.stderr
