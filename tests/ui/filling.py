"""A store with databases, generations and changefeeds, whose names attack where they may."""

import random

from cdcmeta import ChangesDB
from cdcmeta.generations import CdcLog, GenerationLog, Sharding, StreamConsumer
from cdcmeta.generations.tokens import TOKEN_MAX
from cdcmeta.scheduler.runtime import changefeed_records as records

from .placing import Placing

SCRIPT = "<script>alert(1)</script>"
EVIL = (
    *(SCRIPT, f'"><img src=x onerror=alert(1)>{SCRIPT}', "javascript:alert(1)", "a' onclick='x"),
    *("user\u202egnp.exe", "nul\0nul", "two\r\nlines\n", "a/../b", "a?b=c&d#e", "{{7*7}}"),
)
PLAIN = tuple(f"{name}/" for name in ("carts", "events", "invoices", "items", "prices", "returns"))
MINUTE_MS = 60_000


def rings(seed=5):
    """Return a small ring, the same with more tokens, and a large one."""
    rng = random.Random(seed)

    def tokens(count, shards):
        return {
            rng.randint(-TOKEN_MAX, TOKEN_MAX): Sharding(rng.choice(shards)) for _ in range(count)
        }

    small = tokens(6, (2, 4))
    return small, small | tokens(6, (4,)), tokens(300, (1, 2))


class Filled:
    """The store, and what was put into it when; names that attack, or plain ones for pictures."""

    def __init__(self, store, clock, names=EVIL):
        self.store, self.clock, self.names = store, clock, names
        self.text = SCRIPT if names is EVIL else "the load is even"
        self.empty = store.save("k", b"v")
        self.databases()
        self.generations()
        self.changefeeds()
        self.now = store.resolved()

    def wait(self, minutes=1):
        self.clock.advance(minutes * MINUTE_MS)

    def databases(self):
        self.db = ChangesDB(self.store, "shop").create()
        ChangesDB(self.store, "a/b").create()
        for id in self.names:
            self.wait()
            self.db.put({"_id": id, "value": id})
        self.revs = [self.db.put({"_id": "users", "price": 1}).rev]
        self.before = self.store.resolved()
        for price in (2, 3):
            self.wait()
            doc = {"_id": "users", "price": price, "note": self.text}
            self.revs.append(self.db.put(doc, rev=self.revs[-1]).rev)
        theirs = {"start": 3, "ids": ["f" * 32, self.revs[1][2:]]}
        self.db.replicate(
            [{"_id": "users", "_rev": f"3-{'f' * 32}", "price": 4, "_revisions": theirs}]
        )

    def generations(self):
        self.made = []
        names = ("default", self.text, f"{self.text}\u202e")
        for name, ring in zip(("default", *names), (*rings(), {0: Sharding(1)}), strict=True):
            self.wait(60)
            log = GenerationLog(self.store, name, propagation_delay=1.0, leeway=1.0)
            self.made.append(log.make(ring))
        self.log = GenerationLog(self.store, propagation_delay=1.0, leeway=1.0)
        with self.log.member("one") as member:
            table = CdcLog(self.store, member, self.text)
            StreamConsumer(self.log, table, f"reader {self.text}")

    def changefeeds(self):
        self.placing = placing = Placing(self.store)
        self.tables = ["orders/", "users/", *self.names]
        placing.create(tables=self.tables, start=self.store.resolved())
        self.wait()
        self.placed = placing.place("c1-5f", *self.tables, why=self.text)
        self.wait()
        placing.checkpoint(self.store.resolved())
        self.wait()
        self.moved = placing.place("c2-60", "orders/", why=f"c1-5f is gone {self.text}")
        placing.report("c2-60", error=self.text, problems={"orders/": f"disk full {self.text}"})
        other = self.text if self.names is EVIL else "c3-61"
        placing.space.commit(
            puts={records.place_key("copy", "users/"): records.encoded_place(other, "named")}
        )
        self.wait()

    def pages(self):
        """Return the URLs of all kinds of pages."""
        generations = [
            f"/generation?log=default&time={self.made[0].time}&key=users",
            f"/generation?log=default&time={self.made[1].time}&start=0",
        ]
        return [
            *("/databases", "/database?db=shop", "/database?db=shop&by=id", "/database?db=a/b"),
            *("/document?db=shop&id=users", f"/document?db=shop&id=users&rev={self.revs[-1]}"),
            f"/document?db=shop&id=users&from={self.before}",
            *("/generations", "/generations?log=default", *generations),
            *("/changefeeds", "/changefeed?cluster=default&feed=copy"),
            "/table?cluster=default&feed=copy&table=orders/",
        ]
