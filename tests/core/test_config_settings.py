"""The user's own settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from vf_core.config.settings import Settings, load_settings, load_settings_and_sources
from vf_core.errors import ConfigError


def test_no_file_means_defaults(tmp_path: Path) -> None:
    assert load_settings(tmp_path / "config.toml", {}) == Settings()


def test_file_then_variables_and_where_each_came_from(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('theme = "light"\nbell = false\nstall_seconds = 30\n')
    settings, sources = load_settings_and_sources(file, {"VF_TUI_ASCII": "1", "VF_TUI_THEME": "ansi"})
    assert settings == Settings(theme="ansi", bell=False, stall_seconds=30, ascii=True)
    assert sources["theme"] == "$VF_TUI_THEME"
    assert sources["bell"] == str(file)
    assert sources["mouse"] == "default"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("them = 'x'\n", r"them: unknown key \(did you mean theme\?\)"),
        ("stall_seconds = 0\n", "stall_seconds: must be more than 0"),
        ("bell = 'maybe'\n", "bell: expected true or false, got 'maybe'"),
        ("theme = \n", "line 1"),
    ],
)
def test_refusals_name_file_and_key(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=told) as info:
        load_settings(file, {})
    assert info.value.file == file


def test_an_unfit_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"\$VF_TUI_SLOW: slow: expected true or false"):
        load_settings(Path("/nonexistent/config.toml"), {"VF_TUI_SLOW": "perhaps"})
