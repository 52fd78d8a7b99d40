"""A rollout's secret on its way to a server that rollouts share, so that only that server can read it.

While such a server is down, whoever gets its port (a container shares this host's) is sent what was meant for it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

_NONCE = 16
_TAG = 32
_LONGEST = 64


def sealed(secret: str, key: str) -> str:
    """`secret`, at most 64 bytes, for who has `key`."""
    data, nonce = secret.encode(), secrets.token_bytes(_NONCE)
    if len(data) > _LONGEST:
        raise ValueError(f"more than {_LONGEST} bytes cannot be sealed")
    hidden = _masked(data, nonce, key)
    return base64.urlsafe_b64encode(nonce + hidden + _tag(nonce + hidden, key)).decode()


def opened(text: str, key: str) -> str:
    """What was sealed with `key`; empty for anything else."""
    try:
        raw = base64.urlsafe_b64decode(text.encode())
    except ValueError:
        return ""
    told, tag = raw[:-_TAG], raw[-_TAG:]
    if not hmac.compare_digest(tag, _tag(told, key)):
        return ""
    return _masked(told[_NONCE:], told[:_NONCE], key).decode()


def _masked(data: bytes, nonce: bytes, key: str) -> bytes:
    mask = hmac.digest(key.encode(), b"mask" + nonce, hashlib.sha512)
    return bytes(a ^ b for a, b in zip(data, mask, strict=False))


def _tag(data: bytes, key: str) -> bytes:
    return hmac.digest(key.encode(), b"tag" + data, hashlib.sha256)
