"""Other people's packages: real wheels, installed into environments, run from TOML with their own options.

On this Python and on the newest of the machine (D01, D04, P01, P04, U10).
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import pytest
import tomli_w

from doubles.command_line import Home, records
from doubles.peer_venv import peer_python
from doubles.plugin_venv import environment, install, newest_python
from vf_tui.scaffold import make_package

BACKEND = "hatchling==1.27.0"
IDS = ("zoo_lab_taskset", "zoo_lab_harness", "zoo_lab_judge")
NOISE = """
import os, subprocess, sys, warnings
def noise():
    print("stray out"); print("stray err", file=sys.stderr)
    os.write(1, b"stray fd 1\\n"); os.write(2, b"stray fd 2\\n")
    subprocess.run("echo stray child; echo stray child >&2", shell=True)
    warnings.warn("stray warning")
noise()
"""
BROKEN = {
    "zoo_needy": "import no_such_dependency\n__all__ = []\n",
    "zoo_exits": "import sys\nprint('leaving')\nsys.stdout.flush()\nimport os\nos._exit(7)\n",
}


def build(source: Path) -> Path:
    """The wheel of a project."""
    done = subprocess.run(
        [str(peer_python(BACKEND)), "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"],
        cwd=source, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `vf-tui init` makes, all kinds in one package, and noisy: on import, and in hooks."""
    made = make_package("zoo-lab", ["taskset", "harness", "judge"], tmp_path_factory.mktemp("projects"))
    for id in IDS:
        file = made / id / "__init__.py"
        text = file.read_text().replace("\nVF_TUI_API", f"\n{NOISE}\nVF_TUI_API")
        for hook in ("async def right", "async def launch", "async def score"):
            before, found, after = text.partition(f"    {hook}")
            if found:
                head, colon, body = after.partition(":\n")
                text = f"{before}    {hook}{head}{colon}        noise()\n{body}"
        file.write_text(text)
    return made


@pytest.fixture(scope="module")
def wheels(project: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The good package's wheel, and one of a package that is broken in several ways."""
    bad = make_package("zoo-bad", ["taskset"], tmp_path_factory.mktemp("projects"))
    told = tomllib.loads((bad / "pyproject.toml").read_text())
    for module, source in BROKEN.items():
        (bad / module).mkdir()
        (bad / module / "__init__.py").write_text(source)
        told["project"]["entry-points"]["vf_tui.plugins"][module] = module
        told["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"].append(module)
    (bad / "pyproject.toml").write_text(tomli_w.dumps(told))
    return [build(project), build(bad)]


class Place:
    """An environment with plugins in it, and a home to run commands in."""

    def __init__(self, path: Path, python: Path | None, *wheels: Path) -> None:
        self.python = environment(path / "venv", python)
        install(self.python, *wheels)
        self.home = Home(path / "home")
        self.home.env["PYTHONPATH"] = ""

    def __call__(self, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.python), *args], cwd=cwd or self.home.work, env=self.home.env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    def vf_tui(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self("-c", "from vf_tui.cli import main; main()", *args)


@pytest.mark.network
@pytest.mark.timeout(600)
def test_what_is_installed_is_found_and_what_is_broken_is_told(
    project: Path, wheels: list[Path], tmp_path: Path
) -> None:
    place = Place(tmp_path, None, *wheels)
    listed = place.vf_tui("plugins", "--json", "--seconds", "120")
    assert listed.returncode == 0, listed.stderr
    told = json.loads(listed.stdout)
    found = {plugin["id"]: plugin for plugin in told["plugins"]}
    assert [found[id]["kind"] for id in IDS] == ["taskset", "harness", "judge"]
    assert found["zoo_lab_harness"]["options"] == [{"name": "tries", "type": "int", "default": "2"}]
    assert found["zoo_lab_judge"]["distribution"] == "zoo-lab"
    assert {p["id"] for p in told["plugins"] if not p["built_in"]} == {*IDS, "zoo_bad"}
    broken = {plugin["module"]: plugin for plugin in told["broken"]}
    assert broken.keys() == BROKEN.keys()
    assert "No module named 'no_such_dependency'" in broken["zoo_needy"]["reason"]
    assert "ended the process (exit 7)" in broken["zoo_exits"]["reason"]
    assert "leaving" in broken["zoo_exits"]["output"]
    assert "stray" not in listed.stdout + listed.stderr
    # The scaffold's own tests; one of them runs its eval.
    options = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib")
    own = place("-P", "-m", "pytest", *options, str(project), cwd=project)
    assert own.returncode == 0, own.stdout + own.stderr
    assert "8 passed" in own.stdout


@pytest.mark.network
@pytest.mark.timeout(600)
def test_an_eval_of_installed_plugins_on_the_newest_python(
    project: Path, wheels: list[Path], tmp_path: Path
) -> None:
    """Where this is the newest one, on this."""
    place = Place(tmp_path, newest_python(), wheels[0])
    (place.home.work / "eval.toml").write_text(
        (project / "eval.toml").read_text()
        .replace('"zoo_lab_taskset"', '"someone/Zoo-Lab-Taskset@1.0"')
        .replace("count = 3", "count = 2")
        .replace("tries = 2", "tries = 1")
    )  # fmt: skip
    scenario = ["--scripted", str(project / "scenario.toml")]
    ran = place.vf_tui("run", "eval.toml", *scenario, "--json", "--env.taskset.task.judges.0.best", "16")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    launch, *_, last = records(ran.stdout)
    saved = tomllib.loads((Path(launch["dir"]) / "config.toml").read_text())["env"]
    (judge,) = saved["taskset"]["task"]["judges"]
    assert (saved["taskset"]["count"], saved["agent"]["harness"]["tries"], judge["best"]) == (2, 1, 16)
    # Right answers, and half of the judge's 8 of 16.
    assert (last["counts"]["completed"], last["reward"]) == (2, 1.25)
    typo = place.vf_tui("run", "eval.toml", "--dry-run", "--env.taskset.task.judges.0.bets", "3")
    assert (typo.returncode, "did you mean best?" in typo.stderr) == (2, True), typo.stderr
    # U10: what they print is in the logs and nowhere else.
    assert "stray" not in ran.stdout + ran.stderr + typo.stdout + typo.stderr
    log = (Path(launch["dir"]) / "logs" / "engine.log").read_text()
    for what in ("out", "err", "fd 1", "fd 2", "child", "warning"):
        assert f"stray {what}" in log, what
