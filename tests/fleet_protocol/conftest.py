"""The modules of tests/protocol, whose network engine these tests extend."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "protocol"))
