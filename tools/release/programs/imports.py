"""The modules that the command line names can be imported."""

import importlib
import sys

for name in sys.argv[1:]:
    importlib.import_module(name)
