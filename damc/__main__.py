"""`python -m damc` is `damc`, which torchrun needs."""

from __future__ import annotations

import sys

from damc.cli import main

if __name__ == "__main__":
    sys.exit(main())
