"""What a tool server's program is told, in a file that it deletes as soon as it has read it: it may hold secrets."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

from vf_core.tasks.toolset import Toolset

_PLACEMENT = frozenset({"runtime", "url", "headers", "colocated"})


@dataclass(frozen=True, slots=True)
class ServeSpec:
    """`cls` and `config_cls` are `module:name`. It listens on `host`, on `port` (0: a free one), and lets in whoever
    brings `token`. `channel` is the address of the state, `channel_secret` what opens its rollout's: without that
    each call brings what opens its own, sealed with `seal`; without an address it has none. `ready` is the file in
    which it says where it listens. `path` is added to Python's search path.
    """

    cls: str
    config_cls: str
    config: Mapping[str, Any]
    token: str
    ready: str
    host: str = "127.0.0.1"
    port: int = 0
    channel: str = ""
    channel_secret: str = ""
    seal: str = ""
    path: tuple[str, ...] = field(default=())

    def dump(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, data: bytes) -> ServeSpec:
        """What `dump` wrote."""
        fields = json.loads(data)
        return cls(**{**fields, "path": tuple(fields["path"])})


def reference(cls: type) -> str:
    """`module:name`, by which another process imports the class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def find(reference: str) -> Any:
    """The class that a reference means. Raises what its import raises."""
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def told_config(toolset: Toolset[Any, Any]) -> Mapping[str, Any]:
    """The options of a toolset, as JSON can hold them, with the secrets among them: without those of its place."""
    options: Mapping[str, Any] = _open(
        toolset.config.model_dump(exclude=set(_PLACEMENT), serialize_as_any=True)
    )
    return options


def secrets_in(value: Any) -> Iterator[str]:
    """The secrets among a config's options."""
    if isinstance(value, SecretStr | SecretBytes):
        text = value.get_secret_value()
        yield text if isinstance(text, str) else text.decode("utf-8", "replace")
    elif isinstance(value, BaseModel):
        yield from secrets_in([getattr(value, name) for name in type(value).model_fields])
    elif isinstance(value, Mapping):
        yield from secrets_in(list(value.values()))
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from secrets_in(inner)


def _open(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _open(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_open(inner) for inner in value]
    if isinstance(value, SecretStr | SecretBytes):
        return _open(value.get_secret_value())
    if isinstance(value, BaseModel):
        return _open(value.model_dump())
    return to_jsonable_python(value)


def told(error: BaseException) -> str:
    """An error of others' code in a line, whatever its own text does."""
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"
    except Exception:
        return kind
