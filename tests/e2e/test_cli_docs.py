"""What the documentation shows works (case D01): configs load, commands and their options exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from vf_core.config.settings import Settings
from vf_core.eval_config import EvalConfig
from vf_tui import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(*kinds: str) -> list[tuple[str, str]]:
    """The fenced blocks of these languages: the page's name, and the text."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
    return [
        (page.name, text)
        for page in PAGES
        for kind, text in fence.findall(page.read_text(encoding="utf-8"))
        if kind in kinds
    ]


CONFIGS = [(page, text) for page, text in blocks("toml") if "taskset" in text]
COMMANDS = [
    (page, line.partition("  #")[0].strip())
    for page, text in blocks("", "sh", "console")
    for line in text.replace("$ vf-tui", "vf-tui").splitlines()
    if re.match(r"vf-tui(\s|$)", line.strip())
]


@pytest.mark.parametrize(
    ("page", "text"), CONFIGS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(CONFIGS)]
)
def test_d01_configs_load(page: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_TOKEN", "x")
    file = tmp_path / "eval.toml"
    file.write_text(text, encoding="utf-8")
    EvalConfig.load(file)


def test_d01_the_settings_shown_are_the_defaults() -> None:
    (text,) = [
        text for page, text in blocks("toml") if page == "configuration.md" and "stall_seconds" in text
    ]
    shown = tomllib.loads(text)
    assert Settings(**shown) == Settings()
    assert all(name in text for name in Settings.model_fields)


def test_d01_the_config_shown_is_the_default_one(tmp_path: Path) -> None:
    (text,) = [text for page, text in blocks("toml") if page == "configuration.md" and "max_errors" in text]
    shown = tmp_path / "shown.toml"
    shown.write_text(text, encoding="utf-8")
    bare = tmp_path / "bare.toml"
    bare.write_text('[env.taskset]\nid = "demo"\n', encoding="utf-8")
    assert EvalConfig.load(shown).to_dict() == EvalConfig.load(bare).to_dict()


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[line for _, line in COMMANDS])
def test_d01_commands_parse(page: str, line: str) -> None:
    _, *args = shlex.split(line)
    if not args:
        return
    context = click.Context(cli.cli)
    command = cli.cli.get_command(context, args[0])
    assert command is not None, f"{page}: {line}"
    command.make_context(args[0], args[1:], parent=context)
    if args[0] == "run":
        from vf_core.config.load import read_overrides
        from vf_core.eval_config import SHORT_OPTIONS
        from vf_tui.commands.run import split_config

        flags = {"--dry-run", "--detach", "--headless", "--json", "--embedded", "--slow"}
        file, overrides = split_config([arg for arg in args[1:] if arg not in flags])
        assert file is not None
        read_overrides(overrides, SHORT_OPTIONS)
