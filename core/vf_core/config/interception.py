"""`[env.interception]`: how sandboxes reach the interception server, which is on the engine's host.

Local sandboxes reach it by the loopback; for remote ones a tunnel makes it reachable. Names follow verifiers.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from vf_core.config.base import StrictModel
from vf_core.config.secrets import holds_credential

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")


class TunnelConfig(StrictModel):
    """What all tunnels have: `type`; `check`, whether the engine tries the public URL itself, at the start and from
    then on (not where its host cannot reach that URL); `always`, for local sandboxes, too (a docker engine whose
    loopback is not this host's)."""

    type: str
    check: bool = True
    always: bool = False


class CustomTunnelConfig(TunnelConfig):
    """A way that you provide: `url` leads to `port` of this host, where the server binds `host`."""

    type: Literal["custom"] = "custom"
    url: str
    port: int = Field(ge=1, le=65535)
    host: str = "0.0.0.0"  # noqa: S104 - as in verifiers: `url` may be this host's own address

    @field_validator("url")
    @classmethod
    def _public_url(cls, value: str) -> str:
        # Messages must not repeat the value: it may hold a password.
        try:
            parts = urlsplit(value)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid or any(c.isspace() or ord(c) < 32 for c in value):
            raise ValueError("expected an address such as https://host, which leads to this host")
        if parts.username is not None or holds_credential(value):
            raise ValueError(
                "the address must not hold a login or a key: each rollout has a secret of its own"
            )
        if parts.query or parts.fragment:
            raise ValueError("the address must end with its path: no ? and no #")
        value = value.rstrip("/")
        if value.endswith("/v1"):
            raise ValueError("leave /v1 out: it is added to the address")
        return value

    @field_validator("host")
    @classmethod
    def _interface(cls, value: str) -> str:
        try:
            ipaddress.ip_address(value)
        except ValueError:
            if not _HOST.fullmatch(value):
                raise ValueError("expected an address of this host such as 0.0.0.0 or 127.0.0.1") from None
        return value


class PrimeTunnelConfig(TunnelConfig):
    """A tunnel of Prime's tunnel service, opened by the engine with the package `prime-tunnel`."""

    type: Literal["prime"] = "prime"


TUNNELS: dict[str, type[TunnelConfig]] = {"custom": CustomTunnelConfig, "prime": PrimeTunnelConfig}


class InterceptionConfig(StrictModel):
    """One server for all rollouts. `elastic` is verifiers' pool of servers with a `prime` tunnel each: here one
    server with one such tunnel does, whatever `multiplex` says."""

    type: Literal["server", "elastic"] = "server"
    tunnel: SerializeAsAny[TunnelConfig] | None = None
    multiplex: int | None = Field(None, ge=1)

    @property
    def way(self) -> TunnelConfig | None:
        """The tunnel for remote sandboxes; None: they have no way here."""
        return PrimeTunnelConfig() if self.type == "elastic" else self.tunnel

    @field_validator("type", mode="before")
    @classmethod
    def _no_static(cls, value: Any) -> Any:
        if value == "static":
            raise ValueError(
                "'static' (a fixed set of servers) is not needed: one server serves all rollouts. Use "
                'type = "server" and the tunnel of one of its servers'
            )
        return value

    @model_validator(mode="after")
    def _fit(self) -> InterceptionConfig:
        if self.type == "elastic" and self.tunnel is not None:
            raise ValueError(
                'type = "elastic" opens prime tunnels; with a tunnel of your own use type = "server"'
            )
        if self.type == "server" and self.multiplex is not None:
            raise ValueError('multiplex belongs to type = "elastic"; one server takes any number of rollouts')
        return self
