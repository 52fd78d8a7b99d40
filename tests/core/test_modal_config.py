"""What a Modal config says, and what is refused before anything is asked."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys

import pytest
from pydantic import ValidationError

from vf_core.errors import ConfigError, SandboxError
from vf_core.runtimes.modal import account, sdk
from vf_core.runtimes.modal.config import ModalConfig
from vf_core.runtimes.modal.provider import ModalProvider
from vf_core.trace.task import TaskData


@pytest.fixture
def credentials(monkeypatch):
    monkeypatch.setenv("MODAL_CONFIG_PATH", os.devnull)
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-abcdefgh")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-verysecret")


def make(**options):
    return ModalConfig.model_validate({"type": "modal", **options})


def test_defaults():
    config = make()
    assert (config.image, config.workdir) == ("python:3.11-slim", "/app")
    assert (config.cpu, config.memory, config.memory_mib) == (1, 2, 2048)
    assert (config.timeout, config.idle_timeout, config.lifetime) == (86400, 3600, 86400.0)
    assert config.creates_per_sec == 40


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 59},
        {"timeout": 86401},
        {"timeout": 90.5},
        {"idle_timeout": 59},
        {"timeout": 600, "idle_timeout": 601},
        {"memory": 0},
        {"cpu": -1},
        {"creates_per_sec": 0},
        {"workdir": "app"},
        {"image": "--privileged"},
        {"gpu": "A100:0"},
        {"expose_ports": [0]},
        {"expose_ports": [8000] * 9},
        {"labels": {"vf-tui.run": "x"}},
        {"labels": {"team": "two words"}},
        {"vm": True},
        {"guaranteed": True},
    ],
)
def test_values_that_are_none(options):
    with pytest.raises(ValidationError):
        make(**options)


def test_a_short_life_shortens_the_idle_time_that_nobody_set():
    assert make(timeout=600).idle_timeout == 600
    assert make(timeout=600, idle_timeout=60).idle_timeout == 60
    assert make(memory=0.5).memory_mib == 512


def test_a_tasks_own_image_and_resources():
    data = TaskData.model_validate({"idx": 0, "image": "debian:12", "resources": {"cpu": 4, "memory": 8}})
    config = make(memory=3).for_task(data)
    assert (config.image, config.cpu, config.memory) == ("debian:12", 4, 3)


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ({"gpu": "2"}, "gpu", "without a type"),
        ({"disk": 1000}, "disk", "512 GB"),
        ({"network_access": False, "expose_ports": [80]}, "expose_ports", "network_access"),
    ],
)
def test_what_modal_would_drop_or_refuse_is_refused_by_name(options, key, words):
    """R29."""
    with pytest.raises(ValidationError, match=words) as e:
        make(**options)
    assert key in str(e.value)


@pytest.mark.parametrize("wish", [{"gpu": "2"}, {"disk": 1000}])
def test_a_tasks_wish_that_modal_cannot_meet(wish):
    """R29: before anything is asked for."""
    with pytest.raises(ValueError, match=next(iter(wish))):
        make().for_task(TaskData.model_validate({"idx": 0, "resources": wish}))


def test_what_is_possible_passes(credentials):
    make(gpu="A100:2", disk=100, region="eu").validate_here()


@pytest.mark.parametrize("missing", ["MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"])
def test_missing_credentials_are_one_line_that_says_what_to_do(credentials, monkeypatch, missing):
    monkeypatch.delenv(missing)
    with pytest.raises(ConfigError) as e:
        make().validate_here()
    text = str(e.value)
    assert missing in text
    assert "modal token new" in text
    assert "\n" not in text
    assert "verysecret" not in text
    with pytest.raises(SandboxError, match="modal token new"):
        ModalProvider()


def test_a_missing_extra_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(sdk, "_sdk", None)
    for name in [name for name in sys.modules if name == "modal" or name.startswith("modal.")]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "modal":
            raise ModuleNotFoundError("No module named 'modal'", name="modal")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError) as e:
        make().validate_here()
    assert "pip install 'vf-tui[modal]'" in str(e.value)
    assert "not installed" in str(e.value)


def test_a_broken_sdk_says_what_broke(monkeypatch):
    """An import that fails inside the SDK is not a missing SDK."""
    monkeypatch.setattr(sdk, "_sdk", None)
    for name in [name for name in sys.modules if name == "modal" or name.startswith("modal.")]:
        monkeypatch.delitem(sys.modules, name)

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == "modal":
                raise ImportError("cannot import name 'runtime_version' from 'google.protobuf'")

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(ConfigError, match="runtime_version"):
        make().validate_here()


def test_the_account_is_told_without_secrets(credentials, monkeypatch):
    monkeypatch.setenv("MODAL_ENVIRONMENT", "staging")
    label = account.account().label
    assert "staging" in label
    assert "verysecret" not in label
    assert "abcdefgh" not in label
    assert account.account() is account.account()


@pytest.mark.parametrize(
    "text", ["plain-1.2_x", "", "two words", "ünï", "x" * 64, "a/b", "9b2f6d1e-0c1d-4a55-9c6e-a53b1c1f6a0e"]
)
def test_any_label_becomes_a_tag(text):
    tag = account.tag_value(text)
    assert sdk.TAG.fullmatch(tag)
    assert (tag == text) == bool(sdk.TAG.fullmatch(text))
    assert account.tag_value(f"{text} ") != tag


@pytest.mark.parametrize("name", ["vf-1234-t0-r0-a1", "x" * 65, "a b", "é"])
def test_any_name_becomes_one_of_modals(name):
    assert sdk.NAME.fullmatch(account.sandbox_name(name))


def test_the_sdk_is_imported_late_and_kept_quiet():
    """U10: its own handlers write to standard error."""
    program = (
        "import sys, logging\n"
        "import vf_core.runtimes.modal.config, vf_core.runtimes.modal.runtime, vf_core.runtimes.modal.provider\n"
        "assert 'modal' not in sys.modules and 'grpclib' not in sys.modules\n"
        "from vf_core.runtimes.modal import sdk\n"
        "sdk.load()\n"
        "for name in ('modal-client', 'modal-utils', 'grpclib.client'):\n"
        "    logging.getLogger(name).error('to the screen')\n"
    )
    env = {**os.environ, "MODAL_CONFIG_PATH": os.devnull, "MODAL_LOGLEVEL": "DEBUG"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
