"""TOML files and options: reading, merging, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vf_core.config.load import deep_merge, load_toml, parse_overrides, read_overrides, read_value
from vf_core.errors import ConfigError

KEYS = st.text("abc_", min_size=1, max_size=3)
TABLES = st.recursive(
    st.dictionaries(KEYS, st.integers() | st.booleans() | st.lists(st.integers(), max_size=2), max_size=3),
    lambda inner: st.dictionaries(KEYS, inner | st.integers(), max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("text", ['name = "grün ✓"\n', '\ufeffname = "grün ✓"\r\n[t]\r\nx = 1\r\n'])
def test_c04_utf8_whatever_the_locale(tmp_path: Path, text: str) -> None:
    file = tmp_path / "e.toml"
    file.write_bytes(text.encode())
    code = (
        "import sys; from pathlib import Path; from vf_core.config.load import load_toml;"
        "sys.stdout.buffer.write(load_toml(Path(sys.argv[1]))['name'].encode())"
    )
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    out = subprocess.run([sys.executable, "-c", code, str(file)], env=env, capture_output=True, check=True)
    assert out.stdout.decode() == "grün ✓"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"a = 1\nb = = 2\n", "line 2"),
        (b"a = 1\nb = '\xff'\n", "line 2: not UTF-8"),
        (b"a = 1\na = 2\n", "line 2"),
        ("a = 1".encode("utf-16"), "not UTF-8"),
        (b"a = " + b"[" * 5000, "not valid TOML"),
    ],
)
def test_unreadable_files_are_told_with_their_line(tmp_path: Path, content: bytes, told: str) -> None:
    file = tmp_path / "e.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as info:
        load_toml(file)
    assert told in str(info.value)
    assert info.value.file == file


def test_a_missing_file_names_the_one_that_was_meant(tmp_path: Path) -> None:
    (tmp_path / "eval.toml").write_text("")
    with pytest.raises(ConfigError, match=r"evall\.toml.*did you mean .*eval\.toml"):
        load_toml(tmp_path / "evall.toml")
    with pytest.raises(ConfigError, match="there is no directory"):
        load_toml(tmp_path / "no" / "eval.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_toml(tmp_path)


def test_options_both_spellings_and_dashes() -> None:
    assert parse_overrides(["--a.b-c.d", "1", "--a.b_c.e=x=y", "--flag", "--neg", "-3"]) == {
        "a": {"b_c": {"d": 1, "e": "x=y"}},
        "flag": True,
        "neg": -3,
    }
    assert parse_overrides(["--n-x", "1", "--n_x", "2"]) == {"n_x": 2}
    short = [
        (o.path, o.value)
        for o in read_overrides(
            ["-n", "5", "-c=3", "-s", "-m", "x"], {"n": "num", "c": "c", "s": "s", "m": "m"}
        )
    ]
    assert short == [(("num",), 5), (("c",), 3), (("s",), True), (("m",), "x")]


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("True", "True"),
        ("gpt-5-mini", "gpt-5-mini"),
        ('"5"', "5"),
        ("[1, 2]", [1, 2]),
        ('{a = "b"}', {"a": "b"}),
        ("", ""),
        ("2024-01-01", "2024-01-01"),
        ("1\nother = 2", "1\nother = 2"),
        ("#", "#"),
        ("a#b", "a#b"),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_values_are_toml_and_text_where_that_fails(raw: str, value: Any) -> None:
    assert read_value(raw) == value


@pytest.mark.parametrize("args", [["x"], ["-z", "1"], ["--"], ["--a..b", "1"], ["--x", "\udcff"], ["--=1"]])
def test_what_is_no_option_is_refused(args: list[str]) -> None:
    with pytest.raises(ConfigError, match="command line"):
        read_overrides(args)


@given(TABLES, TABLES)
@settings(max_examples=100)
def test_merging_changes_only_what_is_given(base: dict[str, Any], over: dict[str, Any]) -> None:
    def nodes(data: dict[str, Any], at: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
        out: dict[tuple[str, ...], Any] = {}
        for key, value in data.items():
            out[(*at, key)] = value
            if isinstance(value, dict):
                out |= nodes(value, (*at, key))
        return out

    before = repr((base, over))
    merged = nodes(deep_merge(base, over))
    assert repr((base, over)) == before
    wanted, old = nodes(over), nodes(base)
    assert set(merged) <= set(wanted) | set(old)
    for at, value in wanted.items():
        assert at in merged
        assert isinstance(value, dict) or merged[at] == value
    for at, value in old.items():
        touched = at in wanted or any(
            at[:n] in wanted and not isinstance(wanted[at[:n]], dict) for n in range(len(at))
        )
        if not touched and not isinstance(value, dict):
            assert merged[at] == value
