"""What a Prime config says, sends and refuses; the SDK and credentials that it needs. No network."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from vf_core.errors import ConfigError, SandboxError
from vf_core.runtimes.prime import sdk
from vf_core.runtimes.prime.client import account_of
from vf_core.runtimes.prime.config import PrimeConfig
from vf_core.runtimes.prime.provider import PrimeProvider
from vf_core.runtimes.prime.request import create_request
from vf_core.runtimes.prime.runtime import PrimeRuntime


@pytest.fixture(autouse=True)
def logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PRIME_API_KEY", "key")
    for name in ("PRIME_CONTEXT", "PRIME_TEAM_ID", "PRIME_USER_ID", "PRIME_API_BASE_URL", "PRIME_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def config(**options: Any) -> PrimeConfig:
    return PrimeConfig.model_validate(options)


def request(key: str = "key", **options: Any) -> dict[str, Any]:
    made = create_request(config(**options), "vf-1", {"run": "r", "host": "h"}, key)
    sent = made.model_dump(exclude_none=True)
    assert isinstance(sent, dict)
    return sent


def test_what_is_sent_by_default():
    made = request()
    assert made == {
        "idempotency_key": "key",
        "name": "vf-1",
        "docker_image": "python:3.11-slim",
        "cpu_cores": 1.0,
        "memory_gb": 2.0,
        "disk_size_gb": 5.0,
        "gpu_count": 0,
        "timeout_minutes": 1440,
        "labels": ["vf-tui", "vf-tui.run=r", "vf-tui.host=h"],
    }


@pytest.mark.parametrize(("seconds", "minutes"), [(60, 1), (61, 2), (90.5, 2), (3600, 60), (86_400, 1440)])
def test_a_lifetime_is_sent_in_whole_minutes_rounded_up(seconds, minutes):
    assert request(timeout=seconds)["timeout_minutes"] == minutes
    assert config(timeout=seconds).lifetime == seconds


@pytest.mark.parametrize("seconds", [0, -1, 59, 86_401, float("inf")])
def test_lifetimes_that_are_none(seconds):
    with pytest.raises(ValidationError):
        config(timeout=seconds)


def test_an_idle_timeout_is_checked_and_never_sent_for_a_vm():
    """R29: the provider refuses the pair."""
    with pytest.raises(ValidationError, match="idle_timeout = 700 is above timeout = 600"):
        config(timeout=600, idle_timeout=700)
    with pytest.raises(ValidationError):
        config(idle_timeout=59)
    assert "idle_timeout_minutes" not in request(idle_timeout=600)
    assert config(vm=False, timeout=600).idle_minutes == 10
    assert config(vm=False, idle_timeout=61).idle_minutes == 2


def test_a_resolved_config_is_one():
    for options in ({}, {"timeout": 600}, {"timeout": 600, "idle_timeout": 60}):
        resolved = config(**options)
        assert config(**resolved.model_dump()) == resolved
    assert config(timeout=600).idle_timeout == 600


def test_resources_labels_and_place():
    made = request(
        cpu=4,
        memory=16,
        disk=40,
        gpu="H100_80GB:2",
        region="us",
        labels=["mine"],
        image="debian:12",
        workdir="/w",
    )
    assert (made["cpu_cores"], made["memory_gb"], made["disk_size_gb"]) == (4, 16, 40)
    assert (made["gpu_type"], made["gpu_count"], made["region"]) == ("H100_80GB", 2, "us")
    assert made["labels"][-1] == "mine"
    assert made["docker_image"] == "debian:12"


def test_a_gpu_needs_its_type():
    with pytest.raises(ValidationError, match="type"):
        config(gpu="2")


def test_unknown_keys_are_refused():
    with pytest.raises(ValidationError):
        config(imagee="x")


def test_the_record_holds_what_its_format_knows():
    info = PrimeRuntime(config(timeout=600, creates_per_min=30), name="x").info()
    known = {
        *(
            "type",
            "image",
            "workdir",
            "network_access",
            "vm",
            "guaranteed",
            "region",
            "labels",
            "cpu",
            "memory",
        ),
        *("gpu", "disk", "idle_timeout", "creates_per_min", "id", "image_cached"),
    }
    assert set(info) <= known
    assert info["creates_per_min"] == 30


# ---------------------------------------------------------------------- what is refused here


def test_what_can_be_done_here():
    config().validate_here()
    config(region="us", gpu="A100:1", labels=["x"]).validate_here()


@pytest.mark.parametrize(
    ("option", "value"), [("vm", False), ("guaranteed", True), ("network_access", False)]
)
def test_options_that_the_sdk_would_drop_are_refused_by_name(option, value):
    with pytest.raises(ConfigError, match=f"{option} = {str(value).lower()} would be ignored") as caught:
        config(**{option: value}).validate_here()
    assert caught.value.key == option


def test_an_sdk_that_knows_an_option_is_sent_it(monkeypatch):
    monkeypatch.setattr(
        sdk, "request_fields", lambda: frozenset({"vm", "guaranteed", "network_access", "region"})
    )
    config(vm=False, guaranteed=True, network_access=False).validate_here()


def test_an_idle_timeout_is_sent_in_whole_minutes_rounded_up_where_the_sdk_has_containers(monkeypatch):
    monkeypatch.setattr(sdk, "request_fields", lambda: frozenset({"vm", "idle_timeout_minutes"}))
    assert request(vm=False, timeout=600, idle_timeout=61)["idle_timeout_minutes"] == 2
    assert request(vm=False)["idle_timeout_minutes"] == 60
    assert "idle_timeout_minutes" not in request(idle_timeout=61)


def test_missing_credentials_name_the_variable_and_the_command(monkeypatch):
    monkeypatch.delenv("PRIME_API_KEY")
    with pytest.raises(ConfigError, match=r"no credentials.*PRIME_API_KEY.*prime login") as caught:
        config().validate_here()
    assert "\n" not in str(caught.value)
    with pytest.raises(SandboxError, match="PRIME_API_KEY"):
        PrimeProvider()


def test_credentials_of_the_prime_command_count(monkeypatch, tmp_path):
    monkeypatch.delenv("PRIME_API_KEY")
    (tmp_path / ".prime").mkdir()
    (tmp_path / ".prime/config.json").write_text('{"api_key": "from-file", "team_id": "t1"}')
    config().validate_here()
    assert PrimeProvider().account == "team t1 at https://api.primeintellect.ai"


def test_a_context_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setenv("PRIME_CONTEXT", "nowhere")
    with pytest.raises(ConfigError, match="nowhere"):
        config().validate_here()


def child(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


CHECK = """
from vf_core.errors import ConfigError
from vf_core.runtimes import runtime_config_class, make_provider
try:
    runtime_config_class("prime")().validate_here()
except ConfigError as e:
    print(e)
"""


def test_a_missing_extra_is_one_line_that_says_how_to_install_it():
    """D02."""
    told = child("import sys; sys.modules['prime_sandboxes'] = None\n" + CHECK)
    assert told.count("\n") == 1
    assert "not installed" in told
    assert "pip install 'vf-tui[prime]'" in told


def test_a_broken_sdk_is_told(tmp_path):
    """D02."""
    (tmp_path / "prime_sandboxes.py").write_text("raise RuntimeError('Legacy connect-python is installed')")
    told = child(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + CHECK)
    assert told.count("\n") == 1
    assert "cannot be imported: RuntimeError: Legacy connect-python is installed" in told


def test_the_sdk_is_imported_only_when_it_is_used():
    assert (
        child(
            "import sys, vf_core.runtimes.prime.config, vf_core.runtimes.prime.runtime\n"
            "print('prime_sandboxes' in sys.modules)"
        )
        == "False\n"
    )


# ---------------------------------------------------------------------- accounts


def settings(**fields: Any) -> Any:
    return SimpleNamespace(
        **{
            "base_url": "https://api.example",
            "api_key": "secret-key",
            "team_id": None,
            "user_id": None,
            **fields,
        }
    )


def test_accounts_have_no_secrets_and_tell_places_apart():
    assert account_of(settings(team_id="t")) == "team t at https://api.example"
    assert account_of(settings(user_id="u")) == "user u at https://api.example"
    one, other = account_of(settings()), account_of(settings(api_key="another-key"))
    assert one != other
    assert "secret" not in one
    assert account_of(settings(team_id="t", base_url="https://me:pw@h:1")) == "team t at https://h:1"
