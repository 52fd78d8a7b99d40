"""`python -m vf_core.engine RUN_DIR READY_FD`: see `process`."""

import sys

from vf_core.engine.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
