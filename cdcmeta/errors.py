"""Every error of cdcmeta; all derive from `CDCMetaError`."""


class CDCMetaError(Exception):
    """Base of all errors of this package."""
