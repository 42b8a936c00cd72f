"""Views of `snapkv ui`: databases with changes, generations as rings, changefeeds with captures.

The entry point `snapkv.ui.views` names `views`. Each reads the store as of the moment that the page
shows.
"""

from cdcmeta.ui.views import views

__all__ = ["views"]
