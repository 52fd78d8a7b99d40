"""`vf-tui init`: what it makes works as it is, and a name that would not is refused (P01, P02, D01)."""

from __future__ import annotations

import itertools
import os
import re
import tomllib
from pathlib import Path

import pytest

from doubles.command_line import Home
from doubles.plugin_files import plugins
from vf_core.errors import ConfigError
from vf_core.plugins import Kind, kinds
from vf_core.testing import run_eval_async
from vf_tui.scaffold import files, make_package, module_names

COMBINATIONS = [c for n in (1, 2, 3) for c in itertools.combinations(kinds(), n)]


@pytest.mark.parametrize("wanted", COMBINATIONS, ids="+".join)
def test_everything_in_a_package_is_well_formed(wanted: tuple[Kind, ...], tmp_path: Path) -> None:
    made = make_package("zq-made", wanted, tmp_path / "new" / "place")
    told = tomllib.loads((made / "pyproject.toml").read_text())
    modules = set(module_names("zq-made", wanted).values())
    assert modules == ({"zq_made"} if len(wanted) == 1 else {f"zq_made_{kind}" for kind in wanted})
    assert set(told["project"]["entry-points"]["vf_tui.plugins"]) == modules
    assert set(told["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == modules
    for path in made.rglob("*"):
        text = path.read_text() if path.is_file() else ""
        assert "${" not in text, path
        if path.suffix == ".py":
            compile(text, str(path), "exec")
    assert [p.name for p in made.parent.iterdir()] == ["zq-made"]
    assert made.stat().st_mode & 0o777 == 0o777 & ~_umask()


@pytest.mark.parametrize("kind", kinds())
async def test_its_eval_runs_with_its_own_scenario(kind: Kind, tmp_path: Path) -> None:
    made = make_package("zq-made", [kind], tmp_path)
    with plugins(made):
        ran = await run_eval_async(
            made / "eval.toml", says=made / "scenario.toml", directory=tmp_path, overrides=["-n", "2"]
        )
    assert (ran.errors, ran.exit_code) == ([], 0)
    assert ran.rewards == ([1.4, 1.4] if kind == "judge" else [1.0, 1.0])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Lab", "such as lab"),
        ("my lab", "such as my-lab"),
        ("../x", "such as x"),
        ("", "such as my-tasks"),
        ("1x", "such as my-tasks"),
        ("-", "no name for a package"),
        ("x" * 61, "no name for a package"),
        ("jsonl", "a taskset that comes with vf-tui"),
        ("rubric", "a judge that comes with vf-tui"),
        ("json", "a name of Python's own"),
        ("class", "a name of Python's own"),
        ("pytest", "there is a module 'pytest' here already"),
        ("vf-core", "there is a module 'vf_core' here already"),
    ],
)
def test_a_name_that_would_not_do_is_refused(name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        make_package(name, ["taskset"], tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zq-made").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="is there already"):
        make_package("zq-made", ["judge"], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file.* can't be written"):
        make_package("zq-made", ["judge"], tmp_path / "file")

    def fails(*_: object) -> dict[str, str]:
        return {"a": "b", "a/b": "c"}

    monkeypatch.setattr("vf_tui.scaffold.files", fails)
    with pytest.raises(ConfigError, match="can't be written"):
        make_package("zq-other", ["judge"], tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "zq-made"]


def test_the_command_says_what_is_next(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    done = home("init", "zq-made", "--harness", "--dir", "sub")
    assert (done.returncode, done.stderr) == (0, "")
    assert "harness zq_made: sub/zq-made/zq_made/__init__.py" in done.stdout
    assert {
        str(p.relative_to(home.work / "sub/zq-made")) for p in home.work.rglob("*") if p.is_file()
    } == set(files("zq-made", {"harness": "zq_made"}))
    again = home("init", "zq-made", "--harness", "--dir", "sub")
    assert (again.returncode, "is there already" in again.stderr) == (2, True)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
