"""Views of `snapkv ui` for cdcmeta's data: databases, generations, changefeeds.

*Queries* answer as of a moment, as plain data (`databases`, `generations`, `rings`, `changefeeds`,
`past`, `lanes`). *Pictures* are SVG: a ring of token ranges, a tree of revisions, lanes over time.
*Pages* join both with a request; `extra` is what the page of snapkv finds by its entry point
`snapkv.ui.views`.

Needs the extra `ui`, and for generations the extra `generations`.
"""

from snapkv.base.extras import extra

with extra("ui", "the page"):
    from cdcmeta.ui.extra import views

__all__ = ["views"]
