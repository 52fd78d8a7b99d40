"""Where things live: XDG, and a private, short directory for sockets (cases N07, N13, S08)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from vf_core.config import paths
from vf_core.errors import ConfigError


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, a short temporary directory and no runtime directory."""
    for name in ("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    short = tmp_path / "t"
    short.mkdir()
    monkeypatch.setattr(paths, "_short_tmp", lambda: str(short))
    # What pytest names its directories must not decide these tests.
    monkeypatch.setattr(paths, "SOCKET_PATH_LIMIT", len(os.fsencode(str(tmp_path))) + 70)
    return short


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_xdg_variables_count_unless_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths.config_dir() == tmp_path / "home/.config/vf-tui"
    assert paths.state_dir() == tmp_path / "home/.local/state/vf-tui"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert paths.config_dir() == tmp_path / "c/vf-tui"
    assert paths.state_dir() == tmp_path / "home/.local/state/vf-tui"
    assert paths.cache_dir() == tmp_path / "home/.cache/vf-tui"


def test_n07_the_usual_place_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = paths.find_runtime_dir()
    assert found == paths.RuntimeDir(tmp_path / "vf-tui")
    assert mode(found.path) == 0o700
    found.path.chmod(0o755)
    assert mode(paths.runtime_dir()) == 0o700


@pytest.mark.parametrize("squat", ["file", "symlink"])
def test_n07_a_squatted_place_is_left_and_the_fallback_announced(
    places: Path, tmp_path: Path, squat: str, caplog: pytest.LogCaptureFixture
) -> None:
    taken = places / f"vf-tui-{os.geteuid()}"
    if squat == "file":
        taken.write_text("x")
    else:
        taken.symlink_to(tmp_path)
    found = paths.find_runtime_dir()
    assert found.path != taken
    assert str(taken) in found.notice
    assert str(found.path) in found.notice
    assert mode(found.path) == 0o700
    paths.runtime_dir()
    assert str(taken) in caplog.text


def test_n07_a_foreign_directory_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d").mkdir(mode=0o700)
    real = os.geteuid()
    monkeypatch.setattr(paths.os, "geteuid", lambda: real + 1)
    with pytest.raises(ConfigError, match=f"belongs to user {real}"):
        paths.private_dir(tmp_path / "d")


def test_n13_a_long_place_is_not_taken(places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 150)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    found = paths.find_runtime_dir()
    assert found.path.parent == places
    assert "too long" in found.notice
    assert len(os.fsencode(found.path)) + 1 + paths.SOCKET_NAME_LIMIT <= paths.SOCKET_PATH_LIMIT


def test_no_private_place_at_all_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_short_tmp", lambda: str(tmp_path / "nowhere"))
    monkeypatch.setattr(paths, "_make_private", lambda path: f"{path} is not a directory")
    with pytest.raises(ConfigError, match="set XDG_RUNTIME_DIR"):
        paths.runtime_dir()


def test_s08_parents_are_private_too(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        made = paths.private_dir(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(old)
    assert {mode(p) for p in (made, made.parent, made.parent.parent)} == {0o700}
    (tmp_path / "f").write_text("")
    with pytest.raises(ConfigError, match="not a directory"):
        paths.private_dir(tmp_path / "f")


def test_the_real_temporary_directory_is_short_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(paths.tempfile, "gettempdir", lambda: "/" + "x" * 90)
    assert paths._short_tmp() == "/tmp"
