"""How a run's sandboxes reach its interception server: what the config says, and whether that can be."""

from __future__ import annotations

from collections.abc import Callable

from vf_core.config.interception import TunnelConfig
from vf_core.errors import ConfigError
from vf_core.eval_config import EvalConfig
from vf_core.events import types as ev
from vf_core.interception.server import NO_TUNNEL, InterceptionServer
from vf_core.interception.tunnel import PACE, check_here, make_tunnel
from vf_core.interception.upstream import Upstream
from vf_core.runtimes import runtime_is_local

KEY = "env.interception.tunnel"


def check_reach(config: EvalConfig) -> None:
    """Refuse, before anything is created, a model provider whose address cannot be used, and remote sandboxes without
    a way to this host, or with one that this machine cannot open. Raises `ConfigError`."""
    Upstream.from_settings(config.client)
    kind = config.env.agent.runtime.type
    way = _way(config)
    if way is not None:
        check_here(way)
    elif not runtime_is_local(kind):
        raise ConfigError(
            f"{kind} sandboxes run on other machines and need a way to this one, where their model calls go",
            key=KEY,
            hint=NO_TUNNEL,
        )


def doubts(config: EvalConfig) -> tuple[str, ...]:
    """What of the config can hardly be meant."""
    runtime = config.env.agent.runtime
    if runtime_is_local(runtime.type) or getattr(runtime, "network_access", True):
        return ()
    return (
        f"network_access = false: nothing leaves a {runtime.type} sandbox then, its model calls included, unless the "
        "provider lets them",
    )


def make_server(
    config: EvalConfig,
    *,
    run: str,
    publish: Callable[[ev.Event], None],
    works: Callable[[], None] | None = None,
) -> InterceptionServer:
    """The run's server, not started, with the tunnel that its sandboxes need; what happens to that is published, and
    `works` is called each time that it is back."""
    way = _way(config)
    if way is None:
        return InterceptionServer(config.client)

    def say(level: str, message: str) -> None:
        publish(ev.Log(level=level, message=message[: ev.MESSAGE_LIMIT]))

    tunnel = make_tunnel(way, run=run, say=say, pace=PACE)
    tunnel.on_back = works
    return InterceptionServer(config.client, tunnel=tunnel)


def _way(config: EvalConfig) -> TunnelConfig | None:
    """The tunnel to open; None when all sandboxes are on this host, or there is none."""
    way = config.env.interception.way
    if way is None or (runtime_is_local(config.env.agent.runtime.type) and not way.always):
        return None
    return way
