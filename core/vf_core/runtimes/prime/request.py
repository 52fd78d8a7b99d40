"""What is sent to make a sandbox, and which addresses it will reach."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from vf_core.runtimes import labels
from vf_core.runtimes.prime import sdk
from vf_core.runtimes.prime.config import PrimeConfig
from vf_core.runtimes.prime.sdk import CallError
from vf_core.runtimes.remote import parse_gpu


def create_request(config: PrimeConfig, name: str, ours: Mapping[str, str], key: str) -> Any:
    """The SDK's request: our labels before the config's; `key` makes a repeated call find the same sandbox. Raises
    `CallError` when the SDK refuses it."""
    gpu_type, gpu_count = parse_gpu(config.gpu)
    wanted = {
        "idle_timeout_minutes": config.idle_minutes,
        "gpu_type": gpu_type,
        "region": config.region,
        "vm": config.vm,
        "guaranteed": config.guaranteed or None,
        "network_access": config.network_access,
    }
    known = sdk.request_fields()
    try:
        return sdk.load().CreateSandboxRequest(
            name=name,
            docker_image=config.image,
            labels=[*labels.encode_list(ours), *config.labels],
            cpu_cores=config.cpu,
            memory_gb=config.memory,
            disk_size_gb=config.disk,
            gpu_count=gpu_count,
            timeout_minutes=config.timeout_minutes,
            idempotency_key=key,
            **{key: value for key, value in wanted.items() if value is not None and key in known},
        )
    except ValueError as e:
        raise CallError("refused", f"the SDK refuses the request: {e}") from e


def is_loopback(url: str) -> bool:
    """An address of this host that no other machine reaches."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified
