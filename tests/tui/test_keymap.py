"""The registry and what `keys.toml` may make of it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from vf_core.errors import ConfigError
from vf_tui.actions import ACTIONS, BY_ID, SCOPES, in_scope
from vf_tui.keymap import FORBIDDEN_FOR_DANGER, Keymap, build, clashes, key_name, load_keymap

WIDGETS = {
    "run": ("rollout_list.RolloutList", "pane_grid.PaneGrid"),
    "focus": ("activity_view.ActivityView", "log_pane.LogPane", "facts_view.FactsView"),
    "events": ("log_pane.LogPane",),
    "runs": ("facts_view.FactsView",),
}


def test_no_two_actions_of_a_screen_share_a_key() -> None:
    assert clashes(Keymap().keys) == []


def test_ids_are_unique_and_every_action_is_somewhere() -> None:
    assert len(BY_ID) == len(ACTIONS)
    assert all(action.scopes <= set(SCOPES) and action.scopes for action in ACTIONS)


def test_nothing_dangerous_is_on_a_key_of_habit() -> None:
    for action in ACTIONS:
        if action.dangerous:
            assert not set(action.keys) & FORBIDDEN_FOR_DANGER, action.id


def test_keys_that_tmux_or_a_shell_needs_are_left_alone() -> None:
    """K07: and every action has a key that works inside tmux, or is in the palette."""
    used = {key for action in ACTIONS for key in action.keys}
    assert not used & {"ctrl+a", "ctrl+b", "ctrl+s", "ctrl+z"}
    assert not any(key.startswith("alt+") for key in used)
    for action in ACTIONS:
        plain = [k for k in action.keys if not k.startswith(("ctrl+shift", "ctrl+enter", "shift+enter"))]
        assert plain or action.id in {"app.reload", "run.stop"}


@pytest.mark.parametrize("scope", list(WIDGETS))
def test_widgets_do_not_take_the_keys_of_their_screens(scope: str) -> None:
    taken = {key: action.id for action in in_scope(scope) for key in action.keys}
    # The widget with the keys opens what its screen would open, and folds where the screen has no marks.
    same = {"enter", "space"}
    for name in WIDGETS[scope]:
        module, _, cls = name.partition(".")
        widget = getattr(importlib.import_module(f"vf_tui.widgets.{module}"), cls)
        for binding in widget.BINDINGS:
            for key in binding.key.split(","):
                if key in taken and key not in same:
                    assert (key, taken[key]) in {("left", "tab.previous"), ("right", "tab.next")}, (name, key)


def test_remapping_moves_an_action_and_leaves_others() -> None:
    keymap = build({"rollout.stop": "s", "app": {"palette": ["colon", "ctrl+p", "f2"]}})
    assert keymap.of("rollout.stop") == ("s",)
    assert keymap.of("app.palette") == ("colon", "ctrl+p", "f2")
    assert keymap.of("rollout.restart") == ("r",)
    assert keymap.remapped == {"rollout.stop", "app.palette"}
    assert build({"rollout.stop": "X", "rollout.confirm_stop": "x"}).of("rollout.stop") == ("X",)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"rollout.stop": "r"}, ["rollout.stop", "rollout.restart", "'r'"]),
        ({"rollout.stpo": "s"}, ["rollout.stpo", "did you mean rollout.stop"]),
        ({"rollout.stop": "j"}, ["habit", "rollout.stop"]),
        ({"rollout.stop": 7}, ["rollout.stop", "list of keys"]),
        ({"rollout.stop": "ctrl+c"}, ["ctrl+c", "Interrupt"]),
        ({"mark.toggle": "?"}, ["mark.toggle", "app.help"]),
    ],
)
def test_a_refusal_names_what_clashes(table: dict[str, object], says: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        build(table, "keys.toml")
    assert all(word in str(caught.value) for word in ["keys.toml", *says]), str(caught.value)


def test_the_way_out_cannot_be_mapped_away() -> None:
    assert "ctrl+c" in build({"app.interrupt": "f9"}).of("app.interrupt")


def test_a_file_is_read_and_a_missing_one_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    assert load_keymap(file).keys == Keymap().keys
    file.write_text('[keys]\n"rollout.stop" = "s"\n')
    assert load_keymap(file).of("rollout.stop") == ("s",)
    file.write_text('[rollout]\nstop = "s"\n')
    assert load_keymap(file).of("rollout.stop") == ("s",)
    file.write_text("not toml")
    with pytest.raises(ConfigError, match=r"keys\.toml"):
        load_keymap(file)


def test_key_names() -> None:
    assert [key_name(k) for k in ("?", "x", "ctrl+p", " ")] == ["question_mark", "x", "ctrl+p", "space"]
