"""The page: the history of a store in a browser, which `snapkv ui` serves.

A *source* is what is shown: a store, an archive, or an observed prefix; of a *fleet* site, one for
each member. The queries answer each view as plain data, bounded in size and in time: the time
*bar*, *commits* with what they changed, *differences* of a range, a *level* of the tree of keys,
*versions* of a key, *search*, *health*. The *state* of a page is in its URL; a *context* is one
request; the *views* make pages of it; other packages add *extra views*. *Live commits* are followed
with one watch for all live pages. *Restores* are previewed, then committed as previewed.

    with snapkv.open("lmdb:./meta", create=False) as store:
        server = snapkv.ui.ui_server(snapkv.ui.Site(snapkv.ui.Source(store)))
        server.run()  # until SIGINT; from another thread server.stop()

Needs the extra `ui`. No request leaves the server's origin, and pages work without JavaScript
except for dragging and following.
"""

from snapkv.base.extras import requires_extra

with requires_extra("ui", "the page"):
    from snapkv.rendering import Redaction
    from snapkv.ui.application import ui_server
    from snapkv.ui.extra_views import ExtraViews, Link
    from snapkv.ui.fleet.site import FleetSite
    from snapkv.ui.page_source import Source
    from snapkv.ui.rendered_values import Rendering
    from snapkv.ui.request_context import Context, Site
    from snapkv.ui.store_views import Page

__all__ = [
    "Context",
    "ExtraViews",
    "FleetSite",
    "Link",
    "Page",
    "Redaction",
    "Rendering",
    "Site",
    "Source",
    "ui_server",
]
