"""The jsonl taskset's file: rows, and refusals that tell file, line and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vf_core.errors import ConfigError
from vf_core.eval_config import EvalConfig
from vf_core.plugins import load_class
from vf_core.tasksets.jsonl import JsonlConfig, JsonlTask, JsonlTaskset


def load(path: Path, *rows: Any, **config: Any) -> list[JsonlTask]:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return JsonlTaskset(JsonlConfig(id="jsonl", path=path, **config)).select()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def test_a_row_with_everything(file: Path) -> None:
    [task] = load(
        file,
        {
            "name": 7,
            "description": "d",
            "prompt": "What is 6 x 7?",
            "system_prompt": "s",
            "answer": [42, "forty-two", 42.5, True],
            "match": "contains",
            "ignore_case": True,
            "files": {"a/b.txt": "text"},
            "setup": ["sh", "-c", "true"],
            "timeout": 30,
            "image": "debian",
            "workdir": "/w",
            "resources": {"cpu": 2, "gpu": "A100"},
            "info": {"source": {"any": [None]}},
        },
    )
    data = task.data
    assert (data.idx, data.name, data.prompt, data.system_prompt) == (0, "7", "What is 6 x 7?", "s")
    assert data.answer == ["42", "forty-two", "42.5", "true"]
    assert (data.match, data.ignore_case, data.files) == ("contains", True, {"a/b.txt": "text"})
    assert (data.setup, data.timeout.harness, data.image, data.workdir) == (
        ["sh", "-c", "true"],
        30,
        "debian",
        "/w",
    )
    assert (data.resources.cpu, data.resources.gpu) == (2, "A100")
    assert data.info == {"source": {"any": [None]}}


def test_messages_and_defaults_of_the_taskset(file: Path) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "out"},
    ]
    one, two, three = load(
        file,
        {"messages": messages, "answer": "1", "prompt": None},
        {"prompt": "p", "answer": "2", "match": "exact", "system_prompt": "own", "tolerance": 0.5},
        {"prompt": "p", "command": "true"},
        match="numeric",
        system_prompt="shared",
        tolerance=0.25,
        ignore_case=True,
    )
    assert [message.role for message in one.data.prompt or [] if not isinstance(message, str)] == [
        "user",
        "assistant",
        "tool",
    ]
    assert (one.data.match, one.data.system_prompt, one.data.tolerance) == ("numeric", "shared", 0.25)
    assert (two.data.match, two.data.system_prompt, two.data.tolerance) == ("exact", "own", 0.5)
    assert (three.data.match, three.data.answer, three.data.idx) == ("command", [], 2)
    assert one.data.ignore_case


def test_encodings_line_ends_and_blank_lines(file: Path) -> None:
    row = json.dumps({"prompt": "a\u2028b 日本", "answer": "x"}, ensure_ascii=False)
    file.write_bytes(b"\xef\xbb\xbf" + f"{row}\r\n\r\n  \n{row}".encode())
    tasks = JsonlTaskset(JsonlConfig(path=file)).select()
    assert [task.data.prompt for task in tasks] == ["a\u2028b 日本"] * 2
    assert [task.data.idx for task in tasks] == [0, 1]


OK = {"prompt": "p", "answer": "x"}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("{", "line 2: not valid JSON"),
        ("[" * 100_000, "line 2: not valid JSON"),
        ("[1]", "line 2: a row is a JSON object, this is a list"),
        ({**OK, "anwser": "x"}, "line 2: anwser: unknown key (did you mean answer?)"),
        ({**OK, "match": "contain"}, "line 2: match: must be one of"),
        ({**OK, "prompt": 3}, "line 2: prompt: expected text, got 3"),
        ({"answer": "x"}, "line 2: a row has either `prompt` or `messages`"),
        ({**OK, "messages": [{"role": "user", "content": "x"}]}, "either `prompt` or `messages`"),
        ({"messages": [], "answer": "x"}, "line 2: messages: expected a list of messages, not empty"),
        (
            {"messages": [{"role": "usr"}], "answer": "x"},
            "message 0 has the role 'usr' (did you mean 'user'?)",
        ),
        ({"prompt": "p"}, "line 2: match 'exact' needs an `answer`"),
        ({"prompt": "p", "answer": []}, "line 2: match 'exact' needs an `answer`"),
        ({**OK, "answer": {"a": 1}}, "line 2: answer: expected text or a number"),
        ({**OK, "answer": "", "match": "contains"}, "an empty answer would match every reply"),
        ({**OK, "match": "numeric"}, "the answer 'x' is not a number"),
        ({**OK, "answer": "(", "match": "regex"}, "the answer '(' is not a valid pattern"),
        ({**OK, "match": "command"}, "match 'command' needs a `command`"),
        ({**OK, "match": "exact", "command": "true"}, "`command` has no use with match 'exact'"),
        ({**OK, "command": ""}, "line 2: command: the command is empty"),
        ({**OK, "command": []}, "the command is empty"),
        ({**OK, "setup": "a\0b"}, "null character"),
        ({**OK, "setup": "x" * 200_000}, "longer than 100000 bytes"),
        ({**OK, "files": {"../x": ""}}, "'../x' is no path inside the working directory"),
        ({**OK, "files": {"/etc/x": ""}}, "is no path inside"),
        ({**OK, "files": {"a/../../x": ""}}, "is no path inside"),
        ({**OK, "files": {"": ""}}, "is no path inside"),
        ({**OK, "timeout": 0}, "line 2: timeout"),
        ({**OK, "timeout": {"rollout": 3}}, "line 2: timeout.rollout: unknown key"),
        ({**OK, "tolerance": -1}, "line 2: tolerance: must be at least 0"),
    ],
)
def test_a_bad_row_is_told_with_file_and_line(file: Path, row: Any, told: str) -> None:
    """S04, C01."""
    with pytest.raises(ConfigError) as e:
        load(file, OK, row)
    assert str(e.value).startswith(f"{file}, line 2: ")
    assert told in str(e.value)


def test_a_bad_file_is_told(tmp_path: Path) -> None:
    missing = tmp_path / "none.jsonl"
    with pytest.raises(ConfigError, match=r"none\.jsonl: env\.taskset\.path: no such file"):
        JsonlTaskset(JsonlConfig(path=missing)).select()
    with pytest.raises(ConfigError, match="can't be read: Is a directory"):
        JsonlTaskset(JsonlConfig(path=tmp_path)).select()
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    with pytest.raises(ConfigError, match="the file has no rows"):
        JsonlTaskset(JsonlConfig(path=empty)).select()
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(json.dumps(OK).encode() + b'\n{"prompt": "caf\xe9", "answer": "x"}\n')
    with pytest.raises(ConfigError, match=r"line 2: not UTF-8 \(byte 0xe9\)"):
        JsonlTaskset(JsonlConfig(path=latin)).select()


def test_no_more_rows_are_read_than_are_taken(file: Path) -> None:
    file.write_text(json.dumps(OK) + "\nnonsense\n")
    assert len(JsonlTaskset(JsonlConfig(path=file)).select(1)) == 1


def test_it_is_found_by_its_id_and_its_path_starts_at_the_config_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.jsonl").write_text(json.dumps(OK) + "\n")
    config = tmp_path / "eval.toml"
    config.write_text(
        'model = "m"\n[env.taskset]\nid = "jsonl"\npath = "data/rows.jsonl"\nmatch = "contains"\n'
    )
    taskset = EvalConfig.load(config).env.taskset
    assert isinstance(taskset, JsonlConfig)
    [task] = load_class("taskset", "jsonl")(taskset).select()
    assert task.data.match == "contains"
    config.write_text('model = "m"\n[env.taskset]\nid = "jsonl"\n')
    with pytest.raises(ConfigError, match="path"):
        EvalConfig.load(config)
