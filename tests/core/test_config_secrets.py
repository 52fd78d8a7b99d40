"""What counts as a secret (case S02: no short list of names)."""

from __future__ import annotations

import pytest

from vf_core.config.secrets import is_secret, is_secret_entry, is_secret_header

SECRETS = ["zx81-23-31-ab9", "a1b2c3d4e5f6a7b8c9d0", "s3cr3t!", "http://user:word@host/x", "hunter 2 x"]


@pytest.mark.parametrize("value", SECRETS)
@pytest.mark.parametrize("name", ["COOKIE", "AUTHORIZATION", "SESSION_ID", "X-Team-ID", "ACME_LICENCE"])
def test_s02_unknown_names_are_masked_where_anything_may_stand(name: str, value: str) -> None:
    assert is_secret_header(name, value)
    assert is_secret_entry(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DEBUG", "1"),
        ("PYTHONPATH", "/opt/x/lib:/srv/lib"),
        ("LANG", "en_US.UTF-8"),
        ("HF_HUB_OFFLINE", "true"),
        ("MODE", "fast-path"),
        ("ENDPOINT", "https://host.example/v1"),
        ("EMPTY", ""),
        ("VERSION", "1.2.3"),
    ],
)
def test_s02_ordinary_entries_are_kept(name: str, value: str) -> None:
    assert not is_secret_entry(name, value)


def test_s02_well_known_headers_are_kept() -> None:
    assert not is_secret_header("Content-Type", "application/json")
    assert not is_secret_header("User-Agent", "x/1 (y)")
    assert is_secret_header("User-Agent", "Bearer abcdefgh")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_key", "x"),
        ("hfToken", "x"),
        ("dbPassword", "x"),
        ("private-key", "x"),
        ("url", "postgres://u:p@h/db"),
        ("url", "https://h/x?api_key=1"),
        ("note", "sk-abcdefgh12345678"),
        ("note", "eyJhbGciOiJI.eyJzdWIiOiIx.abc"),
        ("note", "-----BEGIN RSA PRIVATE KEY-----"),
    ],
)
def test_named_or_looking_like_a_credential(name: str, value: str) -> None:
    assert is_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_key_var", "OPENAI_API_KEY"),
        ("tokenizer", "gpt2"),
        ("max_tokens", "5"),
        ("answer_key", "label"),
        ("token_file", "/x/y"),
        ("revision", "a1b2c3d4e5f6a7b8c9d0a1b2c3d4e5f6a7b8c9d0"),
        ("model", "org/name-v1"),
        ("prompt", "write an email to me@example.org"),
    ],
)
def test_ordinary_options_are_kept(name: str, value: str) -> None:
    assert not is_secret(name, value)
