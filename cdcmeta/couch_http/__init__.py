"""CouchDB's HTTP face of changes databases, for clients and replicators that exist.

A *server* (uvicorn) runs an *application*: a table of paths and methods, each answered by a
function of a *call*, which is one request to a *service*. The service holds the store; its calls
run in threads. A *feed* walks over the changes step by step; when all was told, it waits for the
*waker* of its database: one thread that follows it, however many wait. Who then asks the same at
the same *moment* shares the answer. What is *streamed* goes out as fast as the client reads, and is
made no faster. The *bodies* of requests are read within bounds, and that of `_bulk_docs` is *split*
into its documents before these are parsed. A *login* is shown by a password or by a cookie; pages
of other *origins* are let in if they are named.

Caveats. There are no attachments, views, functions of design documents, users or permissions
beyond one login; `docs/couch.md` tells what is here.
"""

from snapkv.extras import extra

with extra("http", "CouchDB's HTTP"):
    from cdcmeta.couch_http.limits import Limits as Limits
    from cdcmeta.couch_http.login import Login as Login
    from cdcmeta.couch_http.server import Server as Server
