"""Scenario files: which step answers what, and what a wrong file is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vf_core.errors import ConfigError
from vf_core.judges.reference import ReferenceJudge
from vf_core.scripted.replies import Player, Reply
from vf_core.scripted.scenario import DEMO, Fault, Scenario, Step, load_scenario

TASK = {"role": "user", "content": "add 2 and 3"}


def _player(*steps: dict[str, Any], seed: int = 0, **rule: Any) -> Player:
    rules = [{"name": "r", "step": list(steps), **rule}]
    return Player(Scenario.model_validate({"rule": rules, "seed": seed}))


def _ask(player: Player, *messages: dict[str, Any]) -> Reply:
    return player.reply({"messages": list(messages)})


def _tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "x", "content": text}


def _joined(reply: Reply) -> dict[str, Any]:
    """The message that a reply's pieces make."""
    out: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for piece in reply.pieces:
        for name, value in piece.delta.items():
            if name != "tool_calls":
                out[name] = out.get(name, "") + value
                continue
            for part in value:
                call = calls.setdefault(part["index"], {"function": {"name": "", "arguments": ""}})
                call["id"] = part.get("id", call.get("id"))
                call["function"]["name"] += part["function"].get("name", "")
                call["function"]["arguments"] += part["function"]["arguments"]
    if calls:
        out["tool_calls"] = list(calls.values())
    return out


def test_turns_go_by_and_take_values_from_task_and_result() -> None:
    player = _player(
        {
            "text": "{{a}}+{{b}}",
            "calls": [{"name": "bash", "arguments": {"command": "echo $(({{a}}+{{b}}))"}}],
        },
        {"when": r"(?P<sum>\d+)", "text": "it is {{sum}}, from {{result}}"},
        task=r"add (?P<a>\d+) and (?P<b>\d+)",
    )
    first = _ask(player, TASK).message
    assert first["content"] == "2+3"
    assert first["tool_calls"][0]["function"]["arguments"] == '{"command": "echo $((2+3))"}'
    assert _ask(player, TASK, first, _tool("5\n")).message["content"] == "it is 5, from 5"


def test_alternatives_for_a_turn_and_a_step_that_repeats() -> None:
    player = _player(
        {"text": "start"},
        {"when": "error", "text": "again"},
        {"turn": 1, "text": "well"},
        {"turn": 2, "repeat": True, "text": "on and on"},
    )
    said = {"role": "assistant", "content": "start"}
    assert _ask(player, TASK, said, _tool("an error")).message["content"] == "again"
    assert _ask(player, TASK, said, _tool("fine")).message["content"] == "well"
    for turns in (2, 3, 9):
        assert _ask(player, TASK, *[said] * turns).message["content"] == "on and on"


def test_what_no_step_answers_is_told_and_calls_nothing() -> None:
    player = _player({"text": "only"}, task="subtract")
    assert "scenario says nothing" in _ask(player, TASK).message["content"]


def test_conversations_differ_in_what_is_drawn_and_stay_the_same_within() -> None:
    step = {"text": "{{word}} {{conversation}}", "calls": [{"name": "f", "arguments": {}}]}
    words = [f"w{n}" for n in range(50)]

    def play(seed: int) -> list[str]:
        player = _player(step, step, vars={"word": words}, seed=seed)
        firsts = [_ask(player, TASK).message for _ in range(6)]
        seconds = [_ask(player, TASK, first, _tool("x")).message for first in reversed(firsts)]
        assert [m["content"] for m in reversed(seconds)] == [m["content"] for m in firsts]
        return [m["content"] for m in firsts]

    assert play(0) == play(0)
    assert play(0) != play(1)
    assert len({text.split()[0] for text in play(0)}) > 1


def test_chance_takes_a_step_in_its_share_of_conversations() -> None:
    player = _player({"chance": 0.25, "text": "rare"}, {"turn": 0, "text": "common"})
    said = [_ask(player, TASK).message["content"] for _ in range(400)]
    assert 60 < said.count("rare") < 140
    assert said.count("rare") + said.count("common") == 400


def test_faults_are_for_the_first_tries() -> None:
    player = _player({"text": "x", "fault": {"kind": "status", "times": 2}})
    body = {"messages": [TASK]}
    assert [player.reply(body).fault is not None for _ in range(4)] == [True, True, False, False]
    assert [player.reply(body, retry=n).fault is not None for n in range(3)] == [True, True, False]
    always = _player({"text": "x", "fault": {"kind": "status", "times": 0}})
    assert all(always.reply(body).fault for _ in range(5))


def test_usage_is_counted_given_or_left_out() -> None:
    assert _ask(_player({"text": "one two three"}), TASK).usage == {
        "prompt_tokens": 11,
        "completion_tokens": 3,
        "total_tokens": 14,
    }
    wrong = {"prompt_tokens": -5, "nonsense": True}
    assert _ask(_player({"text": "x", "usage": wrong}), TASK).usage == wrong
    assert _ask(_player({"text": "x", "usage": False}), TASK).usage is None


@settings(max_examples=80)
@given(st.text(), st.text(), st.dictionaries(st.text(max_size=5), st.text(), max_size=3), st.integers(0, 5))
def test_pieces_make_the_message(text: str, reasoning: str, arguments: dict[str, str], seed: int) -> None:
    keep = str.maketrans("{}", "()")
    arguments = {key.translate(keep): value.translate(keep) for key, value in arguments.items()}
    calls = [{"name": "f", "arguments": arguments}, {"name": "g", "raw": text.translate(keep)}]
    reply = _ask(
        _player(
            {"text": text.translate(keep), "reasoning": reasoning.translate(keep), "calls": calls}, seed=seed
        ),
        TASK,
    )
    joined = _joined(reply)
    for name in ("content", "reasoning_content"):
        assert (joined.get(name) or "") == (reply.message.get(name) or "")
    for made, meant in zip(joined["tool_calls"], reply.message["tool_calls"], strict=True):
        assert (made["id"], made["function"]) == (meant["id"], meant["function"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('model = "gpt-5"', "not a real model"),
        ('[[rule]]\nname = "a"\ntask = "("\nstep = [{}]', "not a regular expression"),
        ('[[rule]]\nname = "a"\nstep = [{ text = "{{who}}" }]', "nothing gives {{who}} a value"),
        ('[[rule]]\nname = "a"\nstep = []', "at least 1 item"),
        ('[[rule]]\nname = "a"\nstep = [{ txet = "" }]', "txet"),
        ("model = ", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_told_by_name_and_place(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "scene.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_scenario(file)
    assert says in str(caught.value)
    assert "scene.toml" in str(caught.value)


def test_the_demos_file_is_whole() -> None:
    assert load_scenario(DEMO).model == "scripted-demo"


def test_the_scenario_that_the_page_shows_says_what_it_says(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "quickstart.md").read_text(encoding="utf-8")
    (tmp_path / "my.toml").write_text(page.partition("```ini\n")[2].partition("```")[0])
    player = Player(load_scenario(tmp_path / "my.toml"))
    asked = {"role": "user", "content": "What is 6 * 7?"}
    first = _ask(player, asked)
    assert json.loads(first.message["tool_calls"][0]["function"]["arguments"]) == {
        "command": "echo $((6 * 7))"
    }
    assert _ask(player, asked, first.message, _tool("42\n")).message["content"] == "It is 42."
    prompt = ReferenceJudge.prompt.replace("{question}", "What is 6 * 7?")
    assert _ask(player, {"role": "user", "content": prompt}).message["content"] == "yes"
    # Each field of a step and each kind of fault is named there.
    for word in (*Step.model_fields, *get_args(Fault.model_fields["kind"].annotation)):
        assert f"`{word}`" in page or f'kind = "{word}"' in page, word
