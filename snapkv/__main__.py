"""`python -m snapkv` is `snapkv`."""

import sys

from snapkv.cli import main

if __name__ == "__main__":
    sys.exit(main())
