"""`python -m cdcmeta.cli` is `cdcmeta`."""

import sys

from cdcmeta.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
