"""Every test session has a home of its own: nothing of the user's is read, and nothing is left there."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

# Short, since sockets live under it; set before anything asks for it, so that child processes inherit it.
_HOME = Path(tempfile.mkdtemp(prefix="vft-"))
for name in ("CONFIG", "STATE", "RUNTIME", "CACHE"):
    place = _HOME / name.lower()
    place.mkdir(mode=0o700)
    os.environ[f"XDG_{name}_{'DIR' if name == 'RUNTIME' else 'HOME'}"] = str(place)
for name in ("SSH_CONNECTION", "NO_COLOR", "VF_TUI_ASCII", "TEXTUAL_THEME"):
    os.environ.pop(name, None)
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
