"""A program's time is what its sandbox has left; a config that asks for more is told so."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from doubles.engine_kit import run_whole, script_config
from vf_core.engine.plan import make_plan
from vf_core.eval_config import EvalConfig
from vf_core.rollout.limits import LIFETIME_RESERVE, program_seconds
from vf_core.runtimes.remote import ImageConfig
from vf_core.runtimes.subprocess import SubprocessConfig


@pytest.mark.parametrize(
    ("own", "lifetime", "expected"),
    [
        (None, None, None),
        (50.0, None, 50.0),
        (50.0, 86_400.0, 50.0),
        (100_000.0, 86_400.0, 86_400 - LIFETIME_RESERVE),
        (None, 3600.0, 3600 - LIFETIME_RESERVE),
        (600.0, 60.0, 54.0),
    ],
)
def test_the_shorter_of_both_counts_in_whole_seconds(own, lifetime, expected) -> None:
    got = program_seconds(own, lifetime, time.time())
    assert got == expected or (got is not None and expected is not None and 0 <= expected - got <= 1)
    assert lifetime is None or got == own or got == int(got)


def test_what_passed_since_it_went_live_is_gone() -> None:
    assert program_seconds(None, 3600.0, time.time() - 3000) == pytest.approx(480, abs=1)
    assert program_seconds(None, 3600.0, time.time() - 9000) == 1


def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **timeout: float) -> tuple[str, ...]:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "answer": "b"}\n')
    monkeypatch.setattr(ImageConfig, "validate_here", lambda self: None)
    monkeypatch.setattr("vf_core.runtimes.modal.config.ModalConfig.validate_here", lambda self: None)
    data = {
        "env": {
            "taskset": {"id": "jsonl", "path": str(rows)},
            "agent": {"runtime": {"type": "modal", "timeout": 7200}, "timeout": timeout},
            "interception": {
                "tunnel": {"type": "custom", "url": "http://t.test:1", "port": 1, "check": False}
            },
        },
    }
    return make_plan(EvalConfig.from_dict(data)).warnings


def test_a_limit_above_the_lifetime_is_told_with_both_numbers(tmp_path, monkeypatch) -> None:
    (warning,) = plan(tmp_path, monkeypatch, rollout=10_000)
    assert "env.agent.timeout.rollout of 10000 s" in warning
    assert "7200 s" in warning
    assert plan(tmp_path, monkeypatch, rollout=7200) == ()
    assert plan(tmp_path, monkeypatch) == ()


@pytest.mark.parametrize("own", [None, 600])
async def test_a_program_ends_well_before_its_sandbox_would(tmp_path, monkeypatch, own) -> None:
    """R19: its hooks still work in the sandbox, and it is no error."""
    monkeypatch.setattr(SubprocessConfig, "lifetime", property(lambda self: 4.0))
    timeout = {} if own is None else {"env__agent__timeout__rollout": own}
    kit, code = await run_whole(script_config(tmp_path, ["touch solved; exec sleep 600"], **timeout))
    rollout = kit.rollout()
    assert (code, rollout.status, rollout.stop_condition) == (0, "completed", "harness_timeout")
    assert rollout.program is not None
    assert rollout.program.meaning in ("timeout after 3 s", "timeout after 2 s", "timeout after 1 s")
    assert rollout.reward == 1.0
