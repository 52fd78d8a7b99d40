"""Telling secrets from ordinary settings, so that a saved or printed config holds none.

Names are judged word by word (`HF_TOKEN`, `licenseKey`, but neither `max_tokens` nor `tokenizer`), values by what
credentials look like. Where anything may stand (headers, a program's environment), a value counts as a secret
unless it is evidently ordinary: no list of names knows every vendor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_SECRET_WORDS = _set(
    "secret secrets password passwords passwd passphrase pwd pass token credential credentials creds cookie "
    "cookies auth authorization bearer session jwt apikey apikeys pat otp"
)
_SECRET_KEYS = _set("api access secret private public signing encryption license licence auth team ssh")
# These end the name of something that only points at a secret.
_POINTERS = _set("var env name file path dir url count limit length size type mode")

_URL_LOGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s]*@")
_URL_SECRET = re.compile(r"[?&][^=&\s]*(?:key|token|secret|sig|password|auth)[^=&\s]*=", re.IGNORECASE)
_CREDENTIAL = re.compile(
    r"(?:\b(?:Bearer|Basic|Token)\s+\S+"
    r"|\b(?:sk|pk|rk|pit|xai|gsk|hf|glpat|ghp|gho|ghu|ghs|ghr|github_pat|xox[abeoprs]|npm|pypi|dop_v1|shpat)[-_][A-Za-z0-9_-]{8,}"
    r"|\bA(?:KIA|SIA)[A-Z0-9]{16}\b"
    r"|\bAIza[A-Za-z0-9_-]{30,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----)"
)
_PATH = r"~?/?(?:[A-Za-z0-9_.-]{1,40}/)+[A-Za-z0-9_.-]{0,40}"
_ORDINARY = re.compile(
    r"|[+-]?[0-9]+(?:\.[0-9]+)?"  # nothing, a number
    r"|[A-Za-z]{1,16}(?:[-_., ][A-Za-z]{1,16}){0,5}|[a-z]{1,12}[0-9]{1,2}"  # words
    r"|[0-9]+(?:\.[0-9]+)+|[A-Za-z]{2}_[A-Z]{2}\.UTF-8"  # a version, a locale
    rf"|{_PATH}(?::{_PATH})*"
    r"|[a-z]+://[A-Za-z0-9.-]+(?::[0-9]+)?(?:/[A-Za-z0-9_./-]{0,60})?"  # an address without login or query
    r"|[a-z]+/[a-z0-9.+-]+(?:; ?[a-z]+=[A-Za-z0-9-]+)?"  # a media type
)
_ORDINARY_HEADERS = _set(
    "accept accept-charset accept-encoding accept-language cache-control connection content-type http-referer "
    "openai-beta referer user-agent x-title"
)


def names_secret(path: Sequence[str]) -> bool:
    """The last key of `path` is the name of a secret."""
    words = [word.lower() for word in _WORDS.findall(path[-1])]
    if not words or words[-1] in _POINTERS:
        return False
    if any(word in _SECRET_WORDS for word in words):
        return True
    return words[-1] in ("key", "keys") and any(word in _SECRET_KEYS for word in words[:-1])


def holds_credential(text: str) -> bool:
    """`text` contains what credentials look like: a known prefix, a JWT, a private key, a URL with a login."""
    return bool(_URL_LOGIN.search(text) or _URL_SECRET.search(text) or _CREDENTIAL.search(text))


def evidently_ordinary(text: str) -> bool:
    """`text` can hardly be a secret: a number, words, a path, an address."""
    return len(text) <= 200 and _ORDINARY.fullmatch(text) is not None and not holds_credential(text)


def is_secret(name: str, text: str) -> bool:
    """Whether the setting `name` with the value `text` must not be saved or shown."""
    return names_secret((name,)) or holds_credential(text)


def is_secret_entry(name: str, text: str) -> bool:
    """As `is_secret`, for maps that hold anything (a program's environment): the unknown counts as a secret."""
    return names_secret((name,)) or not evidently_ordinary(text)


def is_secret_header(name: str, text: str) -> bool:
    """As `is_secret`, for an HTTP header: only well-known harmless ones are shown."""
    return name.lower() not in _ORDINARY_HEADERS or holds_credential(text)
