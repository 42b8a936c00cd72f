"""The command line `cdcmeta`."""

from cdcmeta.cli.app import main as main
