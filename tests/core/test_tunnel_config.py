"""`[env.interception]`: verifiers users' configs work or are told why not; what is saved runs again."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from vf_core.config.interception import CustomTunnelConfig, InterceptionConfig, PrimeTunnelConfig
from vf_core.errors import ConfigError
from vf_core.eval_config import EvalConfig

CUSTOM = {"type": "custom", "url": "https://there.example/", "port": 8765}


def load(interception: Any, **more: Any) -> EvalConfig:
    return EvalConfig.from_dict({"env": {"taskset": {"id": "demo"}, "interception": interception}, **more})


def way(interception: Any) -> Any:
    return load(interception).env.interception.way


def test_there_is_none_unless_one_is_given() -> None:
    assert way({}) is None
    assert EvalConfig.from_dict({"env": {"taskset": {"id": "demo"}}}).env.interception == InterceptionConfig()


def test_the_kinds() -> None:
    custom = way({"type": "server", "tunnel": CUSTOM})
    assert custom == CustomTunnelConfig(url="https://there.example", port=8765)
    assert (custom.host, custom.check, custom.always) == ("0.0.0.0", True, False)
    assert way({"tunnel": {**CUSTOM, "host": "127.0.0.1", "check": False}}).host == "127.0.0.1"
    assert way({"tunnel": {"type": "prime"}}) == PrimeTunnelConfig()


@pytest.mark.parametrize(
    "theirs",
    [{"type": "elastic"}, {"type": "elastic", "multiplex": 16}, {"type": "server", "tunnel": CUSTOM}],
)
def test_configs_of_verifiers_users_work(theirs: Any) -> None:
    assert way(theirs) is not None
    assert (way(theirs) == PrimeTunnelConfig()) is (theirs["type"] == "elastic")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            {"type": "static", "servers": [{"tunnel": CUSTOM}]},
            'one server serves all rollouts. Use type = "server"',
        ),
        ({"type": "servr"}, "did you mean server?"),
        ({"type": "elastic", "tunnel": CUSTOM}, "elastic.*opens prime tunnels"),
        ({"multiplex": 3}, "multiplex belongs to"),
        ({"tunel": CUSTOM}, "did you mean tunnel?"),
        ({"tunnel": {"type": "costum"}}, "no tunnel 'costum'.*did you mean custom?"),
        ({"tunnel": {"url": "https://x.example", "port": 1}}, "needs a type"),
        ({"tunnel": "prime"}, "expected a table"),
        (
            {"tunnel": {"type": "prime", "url": "https://x.example"}},
            "env.interception.tunnel.url: unknown key",
        ),
        ({"tunnel": {"type": "custom", "port": 1}}, "url: is required"),
        ({"tunnel": {"type": "custom", "url": "https://x.example"}}, "port: is required"),
        ({"tunnel": {**CUSTOM, "prt": 1}}, "did you mean port?"),
        ({"tunnel": {**CUSTOM, "port": 70000}}, "at most 65535"),
        ({"tunnel": {**CUSTOM, "port": True}}, "expected a number"),
        ({"tunnel": {**CUSTOM, "url": "there.example"}}, "expected an address"),
        ({"tunnel": {**CUSTOM, "url": "ftp://there.example"}}, "expected an address"),
        ({"tunnel": {**CUSTOM, "url": "https://there.example/v1"}}, "leave /v1 out"),
        ({"tunnel": {**CUSTOM, "url": "https://there.example/?a=b"}}, r"no \? and no #"),
        ({"tunnel": {**CUSTOM, "host": "not a host"}}, "an address of this host"),
    ],
)
def test_what_is_wrong_is_told(written: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(written)


def test_a_login_in_the_url_is_refused_and_not_repeated() -> None:
    for url in (
        "https://me:hunter2@there.example",
        "https://there.example/?token=hunter2",
        "https://hunter2@x.example",
    ):
        with pytest.raises(ConfigError) as e:
            load({"tunnel": {**CUSTOM, "url": url}})
        assert "hunter2" not in str(e.value)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    for url in (text, f"https://{text}"):
        try:
            config = CustomTunnelConfig(url=url, port=1)
        except ValidationError:
            continue
        assert config.url.startswith(("http://", "https://"))
        assert not config.url.endswith("/")


@pytest.mark.parametrize(
    "written", [{}, {"tunnel": CUSTOM}, {"tunnel": {"type": "prime"}}, {"type": "elastic", "multiplex": 2}]
)
def test_what_is_saved_runs_again(written: Any) -> None:
    config = load(written)
    again = EvalConfig.from_dict(tomllib.loads(config.to_toml()))
    assert again.to_dict() == config.to_dict()
    assert again.env.interception == config.env.interception
    assert EvalConfig.from_dict(config.to_dict()).env.interception == config.env.interception


def test_options_and_the_older_layout(tmp_path: Path) -> None:
    file = tmp_path / "eval.toml"
    file.write_text(
        '[taskset]\nid = "demo"\n[interception.tunnel]\ntype = "custom"\nurl = "https://a.example"\nport = 1\n'
    )
    assert EvalConfig.load(file).env.interception.way == CustomTunnelConfig(url="https://a.example", port=1)
    over = EvalConfig.load(
        file, ["--env.interception.tunnel.port", "2", "--interception.tunnel.check", "false"]
    )
    assert over.env.interception.way == CustomTunnelConfig(url="https://a.example", port=2, check=False)
    alone = EvalConfig.load(None, ["--env.taskset.id", "demo", "--env.interception.tunnel.type=prime"])
    assert alone.env.interception.way == PrimeTunnelConfig()
    with pytest.raises(ConfigError, match="needs a type"):
        EvalConfig.load(
            None, ["--env.taskset.id", "demo", "--env.interception.tunnel.url", "https://a.example"]
        )
    file.write_text('[taskset]\nid = "demo"\n[interception.tunnel]\ntype = "custm"\n')
    with pytest.raises(ConfigError) as e:
        EvalConfig.load(file)
    assert e.value.key == "interception.tunnel.type"
