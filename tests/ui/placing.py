"""Records of captures, written as an owner and its captures write them."""

from cdcmeta.scheduler.core.watermarks import Watermarks
from cdcmeta.scheduler.runtime import Changefeeds
from cdcmeta.scheduler.runtime import changefeed_records as records
from cdcmeta.scheduler.runtime.changefeed_records import Registration

SOURCE, SINK = "lmdb:/source", "jsonl:/sink"


class Placing:
    """A cluster whose records a test writes, one commit for each call."""

    def __init__(self, store, cluster="default"):
        self.store, self.cluster = store, cluster
        self.feeds = Changefeeds(store, cluster)
        self.space = store.space(records.space_of(cluster))

    def create(self, id="copy", tables=("a/", "b/"), **options):
        return self.feeds.create(id, SOURCE, SINK, tables, **{"start": 100} | options)

    def place(self, capture, *tables, why="least loaded", id="copy"):
        """Write which capture replicates tables; return the commit's timestamp."""
        found = {records.place_key(id, t): records.encoded_place(capture, why) for t in tables}
        return self.space.commit(puts=found).ts

    def unplace(self, *tables, id="copy"):
        return self.space.commit(deletes=[records.place_key(id, t) for t in tables]).ts

    def checkpoint(self, ts, *, resolved=0, id="copy"):
        feed = self.feeds.get(id)
        raw = records.encoded_watermarks(Watermarks(ts, resolved or ts, ts), feed.created)
        return self.space.commit(puts={records.CHECKPOINT + id.encode(): raw}).ts

    def report(self, capture, id="copy", **found):
        report = {"tables": 1, "error": None, "problems": {}} | found
        raw = records.encoded({"feeds": {id: report}, "leaves": False})
        return self.space.commit(puts={records.report_key(capture): raw}).ts

    def register(self, label, address="127.0.0.1:7000", ttl_s=60.0):
        """Return a session that is registered as a capture, and the capture's name."""
        said = Registration(self.cluster, label, address, ttl_s)
        session = self.store.session(ttl_s, said.encode())
        return session, records.capture_name(label, session.id)
