"""`python -m damc`, which also says how it ended: torchrun itself only says whether."""

from __future__ import annotations

import os
import sys

from damc.cli import main

if __name__ == "__main__":
    code = main()
    print(f"process {os.environ['RANK']}: exit {code}", flush=True)
    sys.exit(code)
