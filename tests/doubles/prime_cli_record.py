"""Prints the argument lists that a `prime` command line really builds for its local evaluator, as JSON lines.

    PYTHON_WITH_PRIME tests/doubles/prime_cli_record.py >> tests/doubles/prime_cli_args.jsonl

Run it with a Python in which the `prime` package is installed (0.7.7 is the last release that runs evaluations here).
Its own code runs from the command line down to the process that it would start; only the network is cut off.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

CONFIG = 'model = "m"\n[env.taskset]\nid = "demo"\n'
TYPED = (
    ["eval.toml"],
    ["eval.toml", "--skip-upload"],
    ["eval.toml", "-m", "openai/gpt-5-mini", "-o", "elsewhere"],
    ["eval.toml", "--model=openai/gpt-5-mini", "--output-dir=elsewhere", "--dry-run", "--verbose"],
    ["eval.toml", "-b", "http://127.0.0.1:9/v1", "-k", "OPENAI_API_KEY", "--save-results"],
    ["eval.toml", "-p", "prime", "--disable-tui", "--no-push"],
    ["eval.toml", "--api-base-url=http://127.0.0.1:9/v1", "--header=X-A: b", "--header-from-state", "X-B: c"],
    ["eval.toml", "-e", "endpoints.toml", "--env-dir-path", "environments"],
    ["eval.toml", "-n", "3"],
)
"""What a user types behind `prime eval run`."""


def built(typed: list[str]) -> tuple[list[str] | None, str]:
    """The arguments of the module that the command would run (None when it runs none), and the last that it said."""
    from prime_cli.commands import evals
    from typer.testing import CliRunner

    commands: list[list[str]] = []
    if hasattr(evals, "run_eval_passthrough"):
        from prime_cli import verifiers_bridge

        bridge: Any = verifiers_bridge
        bridge._validate_model = bridge._preflight_inference_billing = lambda *_: None
        bridge._run_command = lambda command, env=None: commands.append(command)
    real = subprocess.Popen

    class Watched(real):  # type: ignore[type-arg,misc,valid-type]
        def __init__(self, command: Any, *args: Any, **named: Any) -> None:
            if "-m" in command:
                commands.append(list(command))
            super().__init__(command, *args, **named)

    subprocess.Popen = Watched  # type: ignore[misc]
    try:
        said = CliRunner().invoke(evals.app, ["run", *typed]).output
    finally:
        subprocess.Popen = real  # type: ignore[misc]
    if not commands:
        return None, " ".join(said.split())
    (command,) = commands
    return command[command.index("-m") + 2 :], ""


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        os.environ.update(
            HOME=place, PRIME_API_KEY="none", PRIME_TEAM_ID="team", PRIME_DISABLE_VERSION_CHECK="1"
        )
        os.chdir(place)
        Path("eval.toml").write_text(CONFIG)
        for typed in TYPED:
            arguments, said = built(list(typed))
            record = {"prime": version("prime"), "typed": typed, "built": arguments, "said": said}
            # Where prime ran is no part of what it builds.
            sys.stdout.write(json.dumps(record).replace(place, "/place") + "\n")


if __name__ == "__main__":
    main()
