"""Which plugins there are: found without an import, tried where they can spoil nothing, told with what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from doubles.plugin_files import HARNESS, TASKSET
from vf_core.discovery import Broken, Candidate, Found, candidates, discover

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


def test_each_is_tried_and_one_bad_one_spoils_nothing(
    site: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    sources = {
        "a_taskset": "print('stray')\n" + TASKSET,
        "a_harness": HARNESS,
        "a_judge": JUDGE,
        "both": f"{TASKSET}\n{HARNESS}\n__all__ = ['Mine', 'Own']\n",
        "no_score": JUDGE.replace("async def score", "async def scores"),
        "odd_score": JUDGE.replace("runtime=None", "harness"),
        "older": HARNESS.replace("*args, **kwargs", "ctx"),
        "newer": f"VF_TUI_API = '9.1'\n{TASKSET}",
        "ends": "import os; print('last words', flush=True); os._exit(3)",
        "dies": "import os; os.kill(os.getpid(), 9)",
        "exits": "import sys; sys.exit(0)",
        "demo": TASKSET,
        "foreign": "class Other: pass\n__all__ = ['Other']\n",
    }
    modules(site, **sources)
    results = discover([Candidate(name, declared=name != "foreign") for name in [*sources, "missing"]])
    found = [(r.kind, r.id) for r in results if isinstance(r, Found)]
    assert found == [
        ("taskset", "a_taskset"), ("harness", "a_harness"), ("judge", "a_judge"),
        ("taskset", "both"), ("harness", "both"),
    ]  # fmt: skip
    (judge,) = (r for r in results if isinstance(r, Found) and r.kind == "judge")
    assert [(o.name, o.type, o.default) for o in judge.options] == [("depth", "int", "1")]
    (taskset,) = (r for r in results if isinstance(r, Found) and r.id == "a_taskset")
    assert ("path", "pathlib.Path") in [(o.name, o.type) for o in taskset.options]
    broken = {r.candidate.module: r for r in results if isinstance(r, Broken)}
    for name, told in {
        "no_score": "does not define score",
        "odd_score": "score asks for 'harness'; it can have task, trace, runtime",
        "older": "launch takes (ctx) but is called with",
        "newer": "written for plugin interface 9.1; vf-tui",
        "ends": "ended the process (exit 3)",
        "dies": "ended the process (exit -9 killed)",
        "exits": "SystemExit: 0",
        "demo": "'demo' means the one that comes with vf-tui",
        "missing": "there is no module 'missing'",
    }.items():
        assert told in broken.pop(name).reason, name
    assert not broken
    assert "last words" in next(r.output for r in results if isinstance(r, Broken) and r.output)
    assert capfd.readouterr() == ("", "")


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
