"""`python -m snapkv.cli` is `snapkv`."""

import sys

from snapkv.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
