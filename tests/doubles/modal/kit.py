"""What tests of the Modal runtime share: the double on a thread, and the SDK made to ask it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from doubles.modal.server import ModalDouble
from vf_core.runtimes.modal.config import ModalConfig
from vf_core.runtimes.modal.runtime import ModalRuntime


def forget_client() -> None:
    """The SDK keeps one client a process, with the address that it had at first."""
    from modal.client import _Client

    _Client._set_env_client(None)


@contextmanager
def _quick_retries() -> Iterator[None]:
    """The SDK tries as often as ever, with less time in between."""
    from modal._grpc_client import _DEFAULT_RETRY

    before = (_DEFAULT_RETRY.base_delay, _DEFAULT_RETRY.max_delay)
    for name, value in (("base_delay", 0.01), ("max_delay", 0.04)):
        object.__setattr__(_DEFAULT_RETRY, name, value)
    yield
    for name, value in zip(("base_delay", "max_delay"), before, strict=True):
        object.__setattr__(_DEFAULT_RETRY, name, value)


def serving(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[ModalDouble]:
    """A double, to be used by a fixture."""
    with ModalDouble(**options) as double, _quick_retries():
        for name, value in double.env.items():
            monkeypatch.setenv(name, value)
        forget_client()
        yield double
    forget_client()


LABELS = {
    "run": "run-1",
    "rollout": "r1",
    "attempt": "1",
    "host": "here",
    "pid": "42",
    "started": "1.5",
    "boot": "b",
}


def runtime(name: str = "box", *, ours: dict[str, str] | None = None, **options: Any) -> ModalRuntime:
    """A runtime, not started; its creation is not paced unless that is asked for."""
    config = ModalConfig.model_validate({"creates_per_sec": None, **options})
    return ModalRuntime(config, name=name, labels=LABELS if ours is None else ours)
