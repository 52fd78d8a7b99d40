"""`vf-tui doctor`, and the app without its optional SDKs (case D02)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.command_line import Home
from doubles.left_over import apart, forget_about
from vf_tui.checks import machine, providers
from vf_tui.checks.base import Finding
from vf_tui.checks.terminal import terminal
from vf_tui.commands.doctor import exit_code, lines

# What a python does that has none of the SDKs: neither their modules nor their distributions.
WITHOUT = """
import importlib.metadata, sys
NAMES = {names}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in NAMES:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
real = importlib.metadata.distribution
def distribution(name):
    if name.replace("-", "_") in NAMES:
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.distribution = distribution
"""
SDKS = ("aiodocker", "prime_sandboxes", "modal", "prime_tunnel")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with apart(tmp_path) as home:
        yield home


def without_sdks(home: Home, *names: str) -> None:
    """From now on this home's python lacks these modules."""
    place = home.path / "site"
    place.mkdir()
    (place / "sitecustomize.py").write_text(WITHOUT.format(names=set(names)))
    home.env["PYTHONPATH"] = f"{place}:{home.env['PYTHONPATH']}"


def findings(home: Home) -> tuple[int, dict[str, dict[str, Any]]]:
    done = home("doctor", "--json")
    record = json.loads(done.stdout)
    assert done.stderr == ""
    assert record["exit_code"] == done.returncode
    return done.returncode, {f"{f['section']}.{f['name']}": f for f in record["findings"]}


def test_a_new_user_without_extras_engine_or_credentials_is_told_what_to_do(home: Home) -> None:
    """D02: nothing is broken, everything missing has its line, and the other commands work."""
    without_sdks(home, *SDKS)
    del home.env["DOCKER_HOST"]
    home.env["XDG_RUNTIME_DIR"] = home.env["TMPDIR"]
    code, found = findings(home)
    for extra in ("docker", "prime", "modal", "tunnel"):
        assert found[f"extras.{extra}"]["status"] == "missing"
        assert found[f"extras.{extra}"]["todo"] == f"pip install 'vf-tui[{extra}]'"
    for name in ("prime", "modal"):
        assert found[f"providers.{name}"]["status"] == "missing"
        assert found[f"providers.{name}"]["todo"]
    assert found["providers.subprocess"]["status"] == "ok"
    assert found["model.OPENAI_API_KEY"]["todo"] or found["model.OPENAI_API_KEY"]["status"] == "ok"
    assert not [f for f in found.values() if f["status"] == "broken"]
    assert code == 0
    answer = home("sandboxes")
    assert answer.returncode == 0, answer.stderr
    assert home("ls").returncode == 0


def test_what_is_configured_and_broken_is_an_exit_code(home: Home) -> None:
    """An SDK that raises on import, an engine that does not answer, half a credential, settings with a typo."""
    place = home.path / "site" / "modal"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("raise RuntimeError('glibc too old [/x]')")
    home.env["PYTHONPATH"] = f"{place.parent}:{home.env['PYTHONPATH']}"
    home.env["MODAL_TOKEN_ID"] = "ak-never-shown"
    home.env["PRIME_API_KEY"] = "pit-never-shown"
    config = home.path / "config" / "vf-tui"
    config.mkdir(parents=True)
    (config / "config.toml").write_text('theme = "drak"')
    (config / "keys.toml").write_text('"rollout.stpo" = "s"')
    forget_about(home, "prime")
    code, found = findings(home)
    broken = {name for name, f in found.items() if f["status"] == "broken"}
    assert broken == {"extras.modal", "providers.docker", "providers.modal", "app.theme", "app.keys"}
    assert code == 2
    assert "glibc too old [/x]" in found["extras.modal"]["text"]
    assert "only MODAL_TOKEN_ID is set" in found["providers.modal"]["text"]
    assert "nonexistent" in found["providers.docker"]["text"]
    assert "did you mean dark?" in found["app.theme"]["text"]
    assert found["providers.prime"]["text"] == "credentials: $PRIME_API_KEY (not tried)"
    assert found["sandboxes.leftovers"]["text"] == "1 sandbox of a dead run is left (1 prime)"
    assert "never-shown" not in json.dumps(found)


def test_text_fits_the_terminal_and_names_what_to_do(home: Home) -> None:
    done = home("doctor")
    assert done.returncode == 5, done.stdout
    assert re.search(r"BROKEN +docker", done.stdout)
    assert all(len(line) <= 80 or "/" in line for line in done.stdout.splitlines())
    assert re.search(r"^\d+ ok, ", done.stdout, re.M)


# -- single checks


def test_exit_codes() -> None:
    ok, warn = Finding("s", "a", "ok", "x"), Finding("s", "b", "warn", "x")
    engine, config = Finding("s", "c", "broken", "x", code=5), Finding("s", "d", "broken", "x")
    assert exit_code([ok, warn, Finding("s", "e", "missing", "x")]) == 0
    assert exit_code([ok, engine]) == 5
    assert exit_code([engine, config]) == 2


def test_a_hostile_text_is_made_safe() -> None:
    finding = Finding("s", "n", "broken", "a\x1b]0;owned\x07b\nc " * 20, "do\r\x1b[2J this")
    assert not re.search(r"[\x00-\x1f\x7f]", "".join(lines(finding)))


def test_where_credentials_are_is_told_and_never_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert providers.prime({}).status == "missing"
    (tmp_path / ".prime").mkdir()
    file = tmp_path / ".prime" / "config.json"
    file.write_text('{"api_key": "s3cret", "team_id": null}')
    assert providers.prime({}).text == f"credentials: {file} (not tried)"
    assert providers.prime({}, sdk=False).status == "warn"
    file.write_text('{"api_key": "s3cret"')
    assert providers.prime({}).status == "broken"
    assert "s3cret" not in providers.prime({}).text

    toml = tmp_path / ".modal.toml"
    toml.write_text('[me]\ntoken_id = "ak-1"\ntoken_secret = "s3cret"\n')
    assert providers.modal({}).text == f"credentials: profile me of {toml} (not tried)"
    assert providers.modal({"MODAL_PROFILE": "other"}).status == "missing"
    toml.write_text('[me]\ntoken_id = "ak-1"\n[you]\nactive = true\ntoken_id = "a"\ntoken_secret = "b"\n')
    assert "profile you" in providers.modal({}).text
    assert (
        providers.modal(
            {"MODAL_TOKEN_ID": "a", "MODAL_TOKEN_SECRET": "b", "MODAL_CONFIG_PATH": "/dev/null"}
        ).status
        == "ok"
    )


def test_an_engine_that_nobody_set_up_is_missing_not_broken() -> None:
    nowhere = {"PATH": "", "HOME": "/nonexistent", "XDG_RUNTIME_DIR": "/nonexistent"}
    assert providers.docker({**nowhere, "DOCKER_HOST": "unix:///nonexistent/x.sock"}).status == "broken"
    ssh = providers.docker({**nowhere, "DOCKER_HOST": "ssh://me@far"})
    assert (ssh.status, ssh.code) == ("broken", 5)
    assert "DOCKER_HOST" in ssh.todo


@pytest.mark.parametrize(
    ("environ", "name", "status"),
    [
        ({"TERM": "dumb"}, "TERM", "warn"),
        ({}, "TERM", "warn"),
        ({"TERM": "xterm-256color"}, "colours", "ok"),
        ({"TERM": "xterm"}, "colours", "warn"),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "colours", "ok"),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, "colours", "ok"),
        ({"TERM": "tmux-256color", "TMUX": "x", "SSH_CONNECTION": "y"}, "inside tmux", "ok"),
    ],
)
def test_terminals(environ: dict[str, str], name: str, status: str) -> None:
    assert {f.name: f.status for f in terminal(environ)}[name] == status


def test_a_place_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert machine._writable("state", file / "below").status == "broken"
    assert machine._writable("state", tmp_path / "a" / "b").status == "ok"
