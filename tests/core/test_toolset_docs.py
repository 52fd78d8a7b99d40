"""What docs/tools.md shows is a taskset that can be run as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vf_core.engine.plan import make_plan
from vf_core.eval_config import EvalConfig

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tools.md"


def test_d01_the_toolset_shown_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = re.findall(r"(?ms)^```(python|ini)\n(.*?)^```$", PAGE.read_text("utf-8"))
    blocks = dict(reversed(shown))  # the first of each; the test of it that stands below is code, too
    assert [bool(compile(text, kind, "exec")) for kind, text in shown if kind == "python"] == [True, True]
    (tmp_path / "library.py").write_text(blocks["python"])
    (tmp_path / "eval.toml").write_text(blocks["ini"])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SEARCH_KEY", "x")
    plan = make_plan(EvalConfig.load(tmp_path / "eval.toml"))
    (search,) = plan.specs[0].task.tool_servers()
    assert (search.server_name, search.config.limit, search.config.api_key.get_secret_value()) == (
        "search",
        3,
        "x",
    )
    for line in re.findall(r"^# (\w+ = .*?)  ", blocks["ini"], re.M):
        key = line.partition(" ")[0]
        assert key in type(search.config).model_fields
