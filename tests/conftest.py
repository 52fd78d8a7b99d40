"""Every test session has a home of its own: nothing of the user's is read, and nothing is left there."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings

# Short, since sockets live under it; set before anything asks for it, so that child processes inherit it.
_HOME = Path(tempfile.mkdtemp(prefix="vft-"))
for name in ("CONFIG", "STATE", "RUNTIME", "CACHE"):
    place = _HOME / name.lower()
    place.mkdir(mode=0o700)
    os.environ[f"XDG_{name}_{'DIR' if name == 'RUNTIME' else 'HOME'}"] = str(place)
for name in ("SSH_CONNECTION", "NO_COLOR", "VF_TUI_ASCII", "TEXTUAL_THEME"):
    os.environ.pop(name, None)
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)

# How long an example takes says something of the machine, not of the code. CI tries the same examples every time;
# elsewhere they are new ones. (Hypothesis has a profile of its own for CI: this one holds there, too.)
_CI = bool(os.environ.get("CI"))
settings.register_profile(
    "suite",
    settings.get_profile("ci" if _CI else "default"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=_CI,
    print_blob=True,
)
settings.load_profile("suite")
