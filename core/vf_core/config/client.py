"""A model provider's endpoint, as configs describe one: the run's own (`[client]`), or a judge's."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from vf_core.config.base import StrictModel
from vf_core.config.secrets import holds_credential

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def header_name(name: str) -> str:
    """`name`, which is a header's. Raises ValueError."""
    if not _HEADER.fullmatch(name):
        raise ValueError("not a header's name")
    return name


def header_value(value: str) -> str:
    """`value`, which a header can hold. Raises ValueError."""
    # Messages must not repeat the value.
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise ValueError("a header's value must not hold control characters")
    return value


def web_address(value: str, expected: str = "an address such as https://host/v1") -> str:
    """`value`, which is a web address without credentials; `expected` says what it should have been.

    Raises ValueError.
    """
    # Messages must not repeat the value: it may hold a password.
    try:
        parts = urlsplit(value)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or any(c.isspace() or ord(c) < 32 for c in value):
        raise ValueError(f"expected {expected}")
    if parts.username is not None or holds_credential(value):
        raise ValueError(
            "an address must not hold a password or a key: put it in a variable and use "
            'headers.Authorization = { env = "VAR" }'
        )
    return value


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value) or holds_credential(value):
        raise ValueError("expected the name of an environment variable, never a key itself")
    return value


Address = Annotated[str, AfterValidator(web_address)]
"""A web address without credentials in it."""
Variable = Annotated[str, AfterValidator(_variable)]
"""The name of an environment variable."""
Headers = dict[Annotated[str, AfterValidator(header_name)], Annotated[str, AfterValidator(header_value)]]
"""HTTP headers; a value may be `{ env = "VAR" }` in a file."""


class ClientConfig(StrictModel):
    """The provider: an OpenAI-compatible endpoint. The API key is read from the environment when it is used."""

    base_url: Address = "https://api.openai.com/v1"
    api_key_var: Variable = "OPENAI_API_KEY"
    headers: Headers = Field(default_factory=dict, repr=False)
    """Sent with every request."""

    def api_key(self, environ: Mapping[str, str] | None = None) -> str | None:
        """The key in the variable `api_key_var`; None when that is unset or empty."""
        return (os.environ if environ is None else environ).get(self.api_key_var) or None
