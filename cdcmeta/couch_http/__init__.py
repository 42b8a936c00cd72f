"""CouchDB's HTTP interface to changes databases, for existing clients and replicators.

A *server* (uvicorn) runs an *application*: a table of paths and methods, each with a function that
answers a *call*. A call is one request to a *service*. The service holds the store, and runs its
calls in threads. A *feed* reads the changes step by step. At the end it waits for the *wakeup* of
its database: one thread that follows the database, however many feeds wait. Feeds that then ask
the same question share the answer. A *streamed* answer is produced no faster than its client reads
it. The *bodies* of requests are read within limits, and that of `_bulk_docs` is split into its
documents before these are parsed. A *login* is proved by a password or a cookie. Pages of other
*origins* may use the server if the origins are named.

Not supported: attachments, views, functions of design documents, and users or permissions beyond
one login. `docs/couch.md` lists what is supported.
"""

from snapkv.base.extras import requires_extra

with requires_extra("http", "CouchDB's HTTP"):
    from cdcmeta.couch_http.auth import Login
    from cdcmeta.couch_http.couch_server import Server
    from cdcmeta.couch_http.service import Limits

__all__ = ["Limits", "Login", "Server"]
