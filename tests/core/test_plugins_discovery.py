"""Which plugins there are: found without an import, tried where they can spoil nothing, told with what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from doubles.plugin_files import HARNESS, TASKSET, plugins
from vf_core.discovery import Broken, Candidate, Found, candidates, discover
from vf_core.discovery.probe import probe

JUDGE = """
from vf_core.judges import Judge, JudgeConfig
class OwnConfig(JudgeConfig):
    depth: int = 1
class Own(Judge[float, OwnConfig]):
    async def score(self, task, trace, runtime=None): return 1.0
__all__ = ["Own"]
"""


def distribution(site: Path, name: str, metadata: str = "", record: str = "", **more: str) -> None:
    """The metadata of an installed distribution, as pip leaves it."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{metadata}")
    (info / "RECORD").write_text(record)
    for file, text in more.items():
        (info / file.replace("__", ".")).write_text(text)


def modules(site: Path, **sources: str) -> None:
    for name, source in sources.items():
        (site / f"{name}.py").write_text(source)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of installed packages, for this process and its children."""
    place = tmp_path / "site"
    place.mkdir()
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return place


def others() -> dict[str, Candidate]:
    return {c.module: c for c in candidates() if c.kind is None}


def test_ours_are_all_there_and_helpers_are_not() -> None:
    assert {c.module.partition(".")[2] for c in candidates() if c.kind is not None} == {
        "tasksets.demo", "tasksets.jsonl", "harnesses.bash", "harnesses.null", "harnesses.pool",
        "judges.reference", "judges.rubric",
    }  # fmt: skip


def test_distributions_are_looked_into_for_what_they_say(site: Path) -> None:
    explodes = "raise AssertionError('imported')\n"
    modules(site, **dict.fromkeys(("needs", "keyed", "unrelated", "declared"), explodes + "__all__ = []\n"))
    modules(site, helper="x = 1\n", bare="from vf_core.tasks import Taskset\n")
    record = "needs.py,,\nhelper.py,,\nbare.py,,\n../bin/x.py,,\n"
    distribution(site, "needs", "Requires-Dist: vf-tui>=0.1 ; extra == 'x'\n", record)
    distribution(site, "keyed", "Keywords: a,vf-tui-plugin\n", "keyed.py,,\n")
    distribution(site, "unrelated", "Requires-Dist: vf-tui-things\n", "unrelated.py,,\n")
    points = "[vf_tui.plugins]\nx = declared\ny = gone.deep:Thing\n"
    distribution(site, "declared", "", "declared.py,,\n", entry_points__txt=points)
    (site / "torn-1.0.dist-info").mkdir()
    found = others()
    assert found.keys() == {"needs", "bare", "keyed", "declared", "gone.deep"}
    assert (found["needs"].distribution, found["needs"].version) == ("needs", "1.0")
    assert [name for name, c in found.items() if c.declared] == ["declared", "gone.deep"]
    assert not {"needs", "keyed", "declared", "bare"} & set(sys.modules)


def test_what_is_installed_in_place_and_what_lies_on_the_path(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pro ject" / "src" / "inplace").mkdir(parents=True)
    (tmp_path / "pro ject" / "src" / "inplace" / "__init__.py").write_text(TASKSET)
    (tmp_path / "pro ject" / "setup.py").write_text("__all__ = []\n")
    url = f'{{"url": "file://{tmp_path}/pro%20ject", "dir_info": {{"editable": true}}}}'
    distribution(site, "inplace", "Requires-Dist: vf-tui\n", direct_url__json=url)
    loose = tmp_path / "loose"
    loose.mkdir()
    modules(loose, mine=HARNESS, script="import vf_core\n", other="__all__ = []\n")
    monkeypatch.setenv("PYTHONPATH", f"{loose}:{tmp_path / 'nowhere'}")
    assert others().keys() == {"inplace", "mine"}


@pytest.mark.parametrize(
    ("source", "found", "told"),
    [
        (TASKSET, ["taskset"], ""),
        (f"{TASKSET}\n{HARNESS}\n__all__ = ['Mine', 'Own']\n", ["taskset", "harness"], ""),
        (JUDGE, ["judge"], ""),
        (
            f"{TASKSET}\n{JUDGE}\n__all__ = ['Mine', 'Own']\n".replace("score", "x"),
            ["taskset"],
            "define score",
        ),
        (JUDGE.replace("async def score", "async def x"), [], "does not define score"),
        (
            JUDGE.replace("runtime=None", "harness"),
            [],
            "score asks for 'harness'; it can have task, trace, run",
        ),
        (HARNESS.replace("*args, **kwargs", "ctx"), [], "launch takes (ctx) but is called with"),
        (f"VF_TUI_API = '9.1'\n{TASKSET}", [], "written for plugin interface 9.1; vf-tui"),
        ("import sys; sys.exit(0)", [], "SystemExit: 0"),
        ("class Other: pass\n__all__ = ['Other']\n", [], "exports Other, and no subclass of Taskset"),
        ("x = 1\n", [], "no __all__"),
    ],
)
def test_a_module_is_described_by_what_it_exports(
    tmp_path: Path, source: str, found: list[str], told: str
) -> None:
    with plugins(tmp_path, probed=source):
        said = probe("probed", None)
    assert [plugin["kind"] for plugin in said["found"]] == found
    assert told in said["reason"] if told else not said["reason"]


def test_a_module_named_as_one_of_ours_is_told(tmp_path: Path) -> None:
    with plugins(tmp_path, demo=TASKSET):
        assert "'demo' means the one that comes with vf-tui" in probe("demo", None)["reason"]
    assert "there is no module 'missing'" in probe("missing", None)["reason"]


def test_each_is_tried_and_one_bad_one_spoils_nothing(
    site: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    sources = {
        "ends": "import os; print('last words', flush=True); os._exit(3)",
        "a_judge": "print('stray')\n" + JUDGE,
        "dies": "import os; os.kill(os.getpid(), 9)",
    }
    modules(site, **sources, helper="class Other: pass\n__all__ = ['Other']\n")
    ends, judge, dies = discover(
        [Candidate(name, declared=name != "helper") for name in [*sources, "helper"]]
    )
    assert isinstance(ends, Broken)
    assert isinstance(dies, Broken)
    assert isinstance(judge, Found)
    assert ("ended the process (exit 3)" in ends.reason, "last words" in ends.output) == (True, True)
    assert "ended the process (exit -9 killed)" in dies.reason
    assert (judge.kind, judge.id) == ("judge", "a_judge")
    assert [(o.name, o.type, o.default) for o in judge.options] == [("depth", "int", "1")]
    assert capfd.readouterr() == ("", "")


def test_what_lies_in_the_current_directory_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An engine would not find it either; and it may be called as a module that ours need.
    modules(tmp_path, lying_about=JUDGE, pydantic="raise SystemExit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    ours, lying = discover([*(c for c in candidates() if c.kind), Candidate("lying_about", declared=True)])[
        -2:
    ]
    assert isinstance(ours, Found)
    assert isinstance(lying, Broken)
    assert "there is no module 'lying_about'" in lying.reason


TOOLS = """
from vf_core.tasks import Task, TaskConfig, TaskData, Taskset, TasksetConfig, Toolset, ToolsetConfig
class FindConfig(ToolsetConfig):
    limit: int = 5
class OwnTaskConfig(TaskConfig):
    find: FindConfig = FindConfig()
    bonus: float = 0.5
class OwnConfig(TasksetConfig):
    task: OwnTaskConfig = OwnTaskConfig()
    path: str
class Own(Taskset[Task[TaskData], OwnConfig]):
    def load(self): return []
__all__ = ["Own"]
"""


def test_options_of_tasks_and_of_tools_are_told_with_their_tables(tmp_path: Path) -> None:
    with plugins(tmp_path, with_tools=TOOLS):
        (found,) = probe("with_tools", None)["found"]
    assert found["options"] == [
        ["task.find.limit", "int", "5"], ["task.bonus", "float", "0.5"], ["path", "str", None],
    ]  # fmt: skip


def test_one_that_does_not_come_back_is_ended_with_all_that_it_started(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    modules(
        site,
        hangs="import subprocess, time\nopen('pid', 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
        "time.sleep(600)\n",
    )
    monkeypatch.chdir(tmp_path)
    (result,) = discover([Candidate("hangs")], seconds=8)
    assert isinstance(result, Broken)
    assert result.reason == "importing it took more than 8 s"
    pid = (tmp_path / "pid").read_text()
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX"
