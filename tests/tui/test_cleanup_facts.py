"""What is said of a sandbox and of its teardown: image, settings, lifetime, how many are still going."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from doubles.inventory_screen import screen_text
from doubles.screen_states import NOW, T0, Rollout, Story
from doubles.watching import started, watching
from vf_core.config.paths import config_dir
from vf_core.events import types as ev
from vf_core.events.fold import apply, fold
from vf_core.events.state import RunState
from vf_core.runtimes.lifecycle import State
from vf_tui import cli
from vf_tui.commands.act import _listed
from vf_tui.headless import Reporter, drain_text
from vf_tui.open_run import OpenRun
from vf_tui.render.facts import ends_words, runtime_words, sandbox_sections, section_lines
from vf_tui.screens.focus import runtime_settings


def one_box(**fields: Any) -> RunState:
    story = Story()
    story.say(ev.RunStarted, 0, run="r", name="n", total=1, concurrency=1)
    r = Rollout(story, "a", 0, "task").begin(1)
    r.say(ev.RuntimeChanged, 2, sandbox="vf-a-1", kind="prime", state="live", id="sb-1", **fields)
    return fold(story.events)


def shown(state: RunState, now: float, settings: str = "") -> str:
    sections = sandbox_sections(state.rollouts["a"], state, now, settings)
    return "\n".join("".join(text for text, _ in line) for line in section_lines(sections, 100))


def test_the_sandbox_tab_counts_down_to_its_end() -> None:
    state = one_box(image="python:3.12-slim", ends=T0 + 86_400)
    text = shown(state, T0 + 3_000, "cpu 2, memory 4 GB")
    assert "python:3.12-slim" in text
    assert "cpu 2, memory 4 GB" in text
    assert "ends by itself in 23 h 10 m, at " in text
    box = state.sandboxes["vf-a-1"]
    assert ends_words(box, T0 + 86_399).startswith("ends by itself in 1 s")
    assert ends_words(box, T0 + 90_000).startswith("its provider was to end it at ")
    box.state = State.GONE
    assert ends_words(box, T0 + 3_000) == ""


def test_one_without_a_lifetime_promises_none() -> None:
    assert "ends by itself" not in shown(one_box(), NOW)


def test_a_runtimes_settings_in_words(tmp_path: Path) -> None:
    table = {"type": "prime", "image": "x", "cpu": 2.0, "memory": 4, "gpu": "A100:2", "env": {"a": "b"}}
    assert runtime_words(table) == "cpu 2.0, memory 4 GB, gpu A100:2"
    assert runtime_settings(tmp_path) == ""
    (tmp_path / "config.toml").write_text('[env.agent.runtime]\ntype = "subprocess"\ngrace = 5\n')
    assert runtime_settings(tmp_path) == "grace 5 s"
    (tmp_path / "config.toml").write_text("[env.agent]\nruntime = 3")
    assert runtime_settings(tmp_path) == ""


async def test_the_tab_shows_the_settings_of_the_runs_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.toml").write_text('[env.agent.runtime]\ntype = "docker"\nmemory = 4\n')
    monkeypatch.setattr(OpenRun, "dir", tmp_path)
    engine = started()
    async with watching(engine) as w:
        r = next(r for r in engine.state.rollouts.values() if r.sandbox is not None)
        w.app.focus_on(r.id, "sandbox")
        await w.until(lambda: "memory 4 GB" in screen_text(w), "the settings on the screen")


def leaving(states: dict[str, str], status: str = "stopping") -> RunState:
    state = one_box()
    apply(state, ev.AttemptFinished(seq=90, t=T0 + 4, rollout="a", attempt=1, outcome="completed"))
    for n, (name, word) in enumerate(states.items()):
        for seq, t, state_word in ((100, 10, "live"), (101, 20, "stopping"), (102, 30, word)):
            apply(
                state,
                ev.RuntimeChanged(
                    seq=seq + 10 * n,
                    t=T0 + t + n,
                    rollout="a",
                    attempt=1,
                    sandbox=name,
                    kind="prime",
                    state=state_word,
                ),
            )
    state.sandboxes.pop("vf-a-1", None)
    state.unconfirmed.discard("vf-a-1")
    state.status = status  # type: ignore[assignment]
    return state


def test_a_teardown_is_counted_with_the_age_of_the_oldest() -> None:
    state = leaving({"b": "checking", "c": "stopping"})
    assert drain_text(state, T0 + 61) == "stopping 2 · oldest 41 s"
    assert drain_text(leaving({"b": "checking", "c": "unknown"}), T0 + 61).endswith("41 s · 1 unconfirmed")
    assert drain_text(leaving({}), T0 + 61) == ""
    apply(state, ev.RunFinished(seq=999, t=T0 + 60, status="stopped"))
    assert drain_text(state, T0 + 61) == ""


def test_while_rollouts_run_single_ends_are_no_teardown() -> None:
    state = one_box()
    apply(state, ev.RuntimeChanged(seq=9, t=T0 + 3, rollout="a", attempt=1, sandbox="vf-a-1", kind="prime",
                                   state="stopping"))  # fmt: skip
    assert state.totals.active == 1
    assert drain_text(state, T0 + 60) == ""


def test_the_count_is_a_line_or_a_notice(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter(json=False).draining("stopping 2 · oldest 41 s")
    Reporter(json=True).draining("stopping 2 · oldest 41 s")
    out, err = capsys.readouterr()
    assert out.count("stopping 2") == 1
    assert err == "stopping 2 · oldest 41 s\n"


def test_an_unknown_theme_is_flagged(capsys: pytest.CaptureFixture[str]) -> None:
    config_dir().mkdir(parents=True)
    (config_dir() / "config.toml").write_text('theme = "drak"')
    for command in ("config", "themes"):
        assert cli.run([command]) == 0
        out, err = capsys.readouterr()
        assert "no theme 'drak' (did you mean dark?); dark is used" in err
        assert "config.toml" in err
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("*")] == [["*", "dark"]]


def test_the_ids_of_an_answer_are_in_order() -> None:
    assert _listed(["0002-0", "0000-0", "0001-0"]) == "0000-0, 0001-0, 0002-0"
