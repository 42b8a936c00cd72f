"""The lmdb engine: the contract in one directory, durable, shared by processes of one machine.

Nouns, from the bottom up: `mdb` is the door to the third-party client; `records` are the bytes;
a `place` is what stands at a path; a `gate` counts this process's running transactions, the
`lock` admits one writer at a time; a `Transaction` is one of LMDB's, between `with` and its end,
with its `Leases`; an `Environment` is one open directory, and the `registry` shares it among all
engines of this process that name it. On it work `reading`, `newest` (what a transaction writes),
`writing`, `leasing`, `watcher`, `compaction`, `backup` and `check`; `LmdbEngine` puts them
together.

Caveats:

* Read transactions are short (a page of a scan each): a long one would keep LMDB from reusing
  pages, and this process from growing its map or forking.
* Durability "relaxed" and "none" can lose the last commits at a power loss, and their revisions
  are then used again for other contents.
* The data file is as long as LMDB's map, with holes: it takes the space of what is in it, but
  copy it with a tool that knows holes (`cp --sparse`, `rsync -S`, `tar -S`), and only while nobody
  writes; `backup` copies a live store, without holes.
* Leases live in the store, not in a process: they survive all of them. Their time is that of the
  machine's uptime; after a reboot each gets its full time again, from when the store is first
  used. (Where the system names no boots, outside Linux, a reboot may shorten or lengthen it.)
* Files and directory are the owner's alone (0600, 0700), whatever the umask, unless `mode` says
  otherwise when the store is made; a file that is made later gets the permissions of `data.mdb`.
  Users who share a store need to read and write all of it (0o660): LMDB's locks are in a file, too.
* A directory that cannot be written is read without LMDB's locks: keep writers away meanwhile.
"""

from snapkv.engine.lmdb.engine import LmdbEngine

__all__ = ["LmdbEngine"]
