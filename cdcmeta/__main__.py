"""`python -m cdcmeta` is `cdcmeta`."""

import sys

from cdcmeta.cli import main

if __name__ == "__main__":
    sys.exit(main())
