"""The app on the engine that listens at a socket: `python screen.py SOCKET`. SLOW=1: as over SSH."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from vf_core.config.settings import Settings
from vf_core.link.socket import SocketLink
from vf_tui.run_app import run_app

if __name__ == "__main__":
    link = SocketLink(Path(sys.argv[1]))
    sys.exit(run_app(link, settings=Settings(slow=bool(os.environ.get("SLOW")), bell=False)))
