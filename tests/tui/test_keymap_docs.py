"""docs/keys.md lists what there is."""

from __future__ import annotations

from pathlib import Path

from vf_tui.actions import ACTIONS
from vf_tui.filter import KEYS
from vf_tui.keymap import Keymap, build, shown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "keys.md"


def test_every_action_is_listed_with_its_keys() -> None:
    rows = {
        line.split("|")[3].strip(" `"): line
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ")
    }
    for action in ACTIONS:
        row = rows[action.id]
        assert action.label in row
        assert action.tip in row
        for key in Keymap().of(action):
            assert f"`{shown(key)}`" in row.replace("\\|", "|"), (action.id, key)


def test_every_filter_key_is_listed() -> None:
    text = PAGE.read_text()
    assert all(f"`{key}" in text for key in KEYS)


def test_the_example_is_a_keymap() -> None:
    import tomllib

    block = PAGE.read_text().split("```toml\n")[1].split("```")[0]
    assert build(tomllib.loads(block)).of("list.sort") == ("S",)
