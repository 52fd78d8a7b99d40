"""From an id to a class: spellings, what does not fit, and what the error says (cases P01, P02, P04, P10)."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.plugin_files import HARNESS, TASKSET, plugins
from vf_core import plugins as room
from vf_core.errors import PluginError
from vf_core.plugins import API_VERSION, config_class, load_class, plugin_name
from vf_core.tasks import TasksetConfig


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """A directory on the path with a taskset `my_tasks` and a harness `my_harness`."""
    with plugins(tmp_path, my_tasks=TASKSET, my_harness=HARNESS):
        yield tmp_path


@pytest.mark.parametrize(
    "id",
    ["my_tasks", "my-tasks", "My-Tasks", "MY_TASKS", "org/my-tasks", "org/my_tasks@1.0", "my-tasks@latest"],
)
def test_p01_all_spellings_load_the_same_plugin(here: Path, id: str) -> None:
    assert load_class("taskset", id) is load_class("taskset", "my_tasks")
    assert plugin_name(id).lower().replace("-", "_") == "my_tasks"


@pytest.mark.parametrize("id", ["My-Harness", "org/my-harness@2"])
def test_p01_harnesses_too(here: Path, id: str) -> None:
    assert load_class("harness", id).__name__ == "Own"


@pytest.mark.parametrize("kind", ["taskset", "harness"])
def test_p01_a_name_that_is_not_there_lists_what_was_tried(kind: str) -> None:
    with pytest.raises(PluginError) as info:
        load_class(kind, "Org/No-Such")  # type: ignore[arg-type]
    text = str(info.value)
    assert all(name in text for name in (f"{kind} 'Org/No-Such' not found", "No_Such", "no_such", sys.prefix))


@pytest.mark.parametrize("id", ["./my_tasks.py", "/x/my_tasks", "a/b/c", "my_tasks.py", "~/x"])
def test_p01_a_file_is_refused_with_what_to_do(here: Path, id: str) -> None:
    with pytest.raises(PluginError, match=r"looks like a file.*pip install -e"):
        load_class("taskset", id)


@pytest.mark.parametrize("id", ["", "@1", "org/", "a b", "1x", "a..b"])
def test_what_is_no_name_is_refused(id: str) -> None:
    with pytest.raises(PluginError, match="is not a name"):
        load_class("taskset", id)


@pytest.mark.parametrize("id", ["test", "json", "sys", "this", "__hello__"])
def test_p02_pythons_own_modules_are_named_and_not_run(id: str) -> None:
    before = set(sys.modules)
    with pytest.raises(PluginError, match=r"standard library \("):
        load_class("taskset", id)
    assert id in before or id not in sys.modules


def test_p02_another_package_is_named_with_why_it_does_not_fit() -> None:
    import pydantic

    with pytest.raises(PluginError, match="not a subclass of Taskset") as info:
        load_class("taskset", "pydantic")
    assert str(info.value.file) == pydantic.__file__


def test_p02_a_plugin_in_front_of_the_standard_library_loads(tmp_path: Path) -> None:
    sys.modules.pop("this", None)
    with plugins(tmp_path, this=TASKSET):
        assert load_class("taskset", "this").__name__ == "Mine"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("", "has no __all__"),
        ("__all__ = []", "exports nothing and not a subclass of Taskset"),
        ("__all__ = ['missing']", "exports missing and not"),
        ("from vf_core.tasks import Taskset\n__all__ = ['Taskset']", "and not a subclass of Taskset"),
        (TASKSET + "class Two(Mine): pass\n__all__.append('Two')", "exports several: Mine, Two"),
        (
            "import no_such_dependency",
            r"ModuleNotFoundError: No module named 'no_such_dependency' \(install what",
        ),
        ("from vf_core.tasks import TaskSett", "ImportError: cannot import name 'TaskSett'"),
        ("x = (", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_what_does_not_fit_says_which_file_and_why(tmp_path: Path, source: str, told: str) -> None:
    with plugins(tmp_path, odd=source), pytest.raises(PluginError, match=told) as info:
        load_class("taskset", "odd")
    assert str(info.value.file).startswith(str(tmp_path / "odd.py"))
    assert "taskset 'odd'" in str(info.value)


def test_an_import_error_names_the_line_in_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("x = 1\nfrom pack import inner\n")
    (tmp_path / "pack" / "inner.py").write_text("\n\nimport no_such_dependency\n")
    with plugins(tmp_path), pytest.raises(PluginError) as info:
        load_class("taskset", "pack")
    assert str(info.value.file) == f"{tmp_path / 'pack' / 'inner.py'}, line 3"


def test_a_failing_parent_is_not_taken_for_a_missing_plugin(tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "__init__.py").write_text("import no_such_dependency\n")
    (tmp_path / "up" / "down.py").write_text(TASKSET)
    with plugins(tmp_path), pytest.raises(PluginError, match=r"a parent of the module up\.down failed"):
        load_class("taskset", "up.down")


def test_p04_the_error_names_the_environment_and_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PluginError, match=r"install.*zq-tasks"):
        load_class("taskset", "zq-tasks")
    receipt = tmp_path / "uv-receipt.toml"
    receipt.write_text("")
    monkeypatch.setattr(room.sys, "prefix", str(tmp_path))
    with pytest.raises(PluginError, match=f"{tmp_path}.*uv tool install vf-tui --with zq-tasks"):
        load_class("taskset", "zq-tasks")
    # Whatever else is in the tool's environment would be dropped by a command that does not name it.
    receipt.write_text(
        '[tool]\nrequirements = [\n{ name = "vf-tui", extras = ["docker"], directory = "/a b/vf-tui" },\n'
        '{ name = "lab", editable = "/lab" }, { name = "other", specifier = ">=1" },\n]\n'
    )
    told = "uv tool install '/a b/vf-tui[docker]' --with-editable /lab --with 'other>=1' --with zq-tasks"
    with pytest.raises(PluginError, match=re.escape(told)):
        load_class("taskset", "zq-tasks")
    monkeypatch.setattr(room.sys, "prefix", "/home/u/.local/share/pipx/venvs/vf-tui")
    with pytest.raises(PluginError, match="pipx inject vf-tui zq-tasks"):
        load_class("taskset", "zq-tasks")


@pytest.mark.parametrize(
    ("declared", "advice"),
    [("2.0", "update vf-tui"), ("1.9", "update vf-tui"), ("0.9", "update the plugin"), ("x", "update")],
)
def test_p10_another_interface_version_is_refused_with_both(
    tmp_path: Path, declared: str, advice: str
) -> None:
    source = f"{TASKSET}\nVF_TUI_API = '{declared}'\n"
    with plugins(tmp_path, other=source), pytest.raises(PluginError, match=advice) as info:
        load_class("taskset", "other")
    assert f"plugin interface {declared};" in str(info.value)
    assert ".".join(map(str, API_VERSION)) in str(info.value)


def test_p10_the_same_interface_version_loads(tmp_path: Path) -> None:
    with plugins(tmp_path, same=f"{TASKSET}\nVF_TUI_API = '1.0'\n"):
        assert load_class("taskset", "same").__name__ == "Mine"


def test_p10_a_missing_method_or_another_signature_is_refused_at_load(tmp_path: Path) -> None:
    abstract = (
        "from vf_core.harnesses.base import Harness, HarnessConfig\n"
        "class H(Harness[HarnessConfig]): pass\n"
        "__all__ = ['H']\n"
    )
    older = HARNESS.replace("self, *args, **kwargs", "self, ctx")
    with plugins(tmp_path, lacking=abstract, older=older):
        with pytest.raises(PluginError, match=r"H does not fit vf-tui .*it does not define launch"):
            load_class("harness", "lacking")
        with pytest.raises(PluginError, match=r"launch takes \(ctx\) but is called with \(ctx, trace"):
            load_class("harness", "older")


def test_options_are_read_off_the_generic_parameter(here: Path, tmp_path: Path) -> None:
    assert config_class(load_class("taskset", "my_tasks")).__name__ == "MineConfig"
    assert config_class(load_class("harness", "my_harness")).__name__ == "OwnConfig"
    derived = (
        "from typing import Generic, TypeVar\n"
        "from vf_core.tasks import Task, Taskset, TasksetConfig\n"
        "C = TypeVar('C', bound=TasksetConfig)\n"
        "class Cfg(TasksetConfig):\n    x: int = 0\n"
        "class Mid(Taskset[Task, C], Generic[C]):\n    def load(self): return []\n"
        "class Leaf(Mid[Cfg]): pass\n"
        "class Bare(Taskset):\n    def load(self): return []\n"
    )
    with plugins(tmp_path, derived=derived + "__all__ = ['Leaf']", bare=derived + "__all__ = ['Bare']"):
        assert config_class(load_class("taskset", "derived")).__name__ == "Cfg"
        assert config_class(load_class("taskset", "bare")) is TasksetConfig
    with pytest.raises(PluginError):
        config_class(int)


def test_what_a_plugin_prints_goes_to_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    noisy = (
        "import sys, warnings\n"
        "print('to out')\n"
        "print('to err', file=sys.stderr)\n"
        "sys.stderr.write('rest')\n"
        "warnings.warn('careful', stacklevel=1)\n"
    )
    with plugins(tmp_path, noisy=noisy + TASKSET), caplog.at_level(logging.INFO):
        load_class("taskset", "noisy")
    assert capfd.readouterr() == ("", "")
    for text in ("to out", "to err", "rest", "careful"):
        assert text in caplog.text


def test_a_kind_without_base_class_is_told() -> None:
    with pytest.raises(PluginError):
        load_class("judge", "anything")
