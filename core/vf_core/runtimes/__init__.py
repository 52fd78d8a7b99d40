"""Sandboxes: the contract, its one lifecycle, and the kinds there are. Kinds are imported when they are used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

from vf_core.errors import ConfigError

if TYPE_CHECKING:
    from vf_core.runtimes.base import Runtime, RuntimeConfig
    from vf_core.runtimes.lifecycle import Observer, Recorder
    from vf_core.runtimes.provider import Provider


@dataclass(frozen=True, slots=True)
class RuntimeSpec:
    """Where a kind of runtime is found, as `module:class`. `extra` is the optional dependency that it needs."""

    config: str
    runtime: str
    provider: str
    extra: str = ""


RUNTIMES: dict[str, RuntimeSpec] = {
    "subprocess": RuntimeSpec(
        config="vf_core.runtimes.subprocess:SubprocessConfig",
        runtime="vf_core.runtimes.subprocess:SubprocessRuntime",
        provider="vf_core.runtimes.leftovers:LocalProvider",
    ),
    "docker": RuntimeSpec(
        config="vf_core.runtimes.docker.config:DockerConfig",
        runtime="vf_core.runtimes.docker.runtime:DockerRuntime",
        provider="vf_core.runtimes.docker.provider:DockerProvider",
        extra="docker",
    ),
    "prime": RuntimeSpec(
        config="vf_core.runtimes.prime.config:PrimeConfig",
        runtime="vf_core.runtimes.prime.runtime:PrimeRuntime",
        provider="vf_core.runtimes.prime.provider:PrimeProvider",
        extra="prime",
    ),
    "modal": RuntimeSpec(
        config="vf_core.runtimes.modal.config:ModalConfig",
        runtime="vf_core.runtimes.modal.runtime:ModalRuntime",
        provider="vf_core.runtimes.modal.provider:ModalProvider",
        extra="modal",
    ),
}


def runtime_config_class(kind: str) -> type[RuntimeConfig]:
    """The config of a kind of runtime. Raises `ConfigError` naming what there is."""
    return cast("type[RuntimeConfig]", _load(_spec(kind).config))


def runtime_is_local(kind: str) -> bool:
    """Whether programs in sandboxes of this kind reach this host's loopback."""
    return cast("type[Runtime]", _load(_spec(kind).runtime)).is_local


def make_runtime(
    config: RuntimeConfig,
    *,
    name: str,
    labels: Mapping[str, str] | None = None,
    observer: Observer | None = None,
    recorder: Recorder | None = None,
) -> Runtime:
    """A runtime of the config's kind, not started. `name` is its sandbox's name, unique in the run; `observer` is
    told of every move of its lifecycle before that is acted on; `recorder` writes it down before it is asked for."""
    runtime = cast("type[Runtime]", _load(_spec(config.type).runtime))(
        config, name=name, labels=labels, observer=observer
    )
    runtime.recorder = recorder
    return runtime


def make_provider(kind: str) -> Provider:
    """What lists and ends sandboxes of a kind, as this user's settings and variables say. Raises `SandboxError` when
    it cannot be used here: no extra, no credentials, no engine, and what to do about it."""
    return cast("type[Provider]", _load(_spec(kind).provider))()


def _spec(kind: str) -> RuntimeSpec:
    spec = RUNTIMES.get(kind)
    if spec is None:
        raise ConfigError(f"there is no runtime {kind!r}", hint=f"one of: {', '.join(RUNTIMES)}")
    return spec


def _load(place: str) -> object:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
