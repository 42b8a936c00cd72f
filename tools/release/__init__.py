"""The release checklist as a program: `make release-check`, or `python -m tools.release --help`.

A `Checklist` (`checklist`) runs named checks one after the other and keeps an `Outcome` of each:
passed, failed, to do before a release, or left out on this machine. `sources` asks the
clone: is the tree clean, do version and changelog agree. `artifacts` builds the wheel and the sdist
from the last commit. `environments` finds the Pythons of this machine and makes empty environments.
`installed` installs the wheel there, alone and with each extra, with the newest and the lowest
versions that pyproject.toml allows, and runs what an installation promises: `programs`. `tested`
runs the tests with the lowest versions.

It downloads about 2 GB, once, and takes tens of minutes. It changes nothing in the clone.
"""
