"""The lmdb engine: one directory, durable, shared by processes of one machine.

The modules, from the bottom up: `client` imports the third-party client; `records` defines the
stored bytes; `lock` admits one writer at a time, and counts this process's running transactions;
`directory` inspects a path before it is opened; an `Environment` is one open directory, a
`Transaction` one of LMDB's on it, between `with` and its end; the `registry` shares environments
among all engines of this process that open the same path. `reading`, `columns`, `writing` (which
also ends leases and compacts), `watcher` and `integrity` work on an environment; `LmdbEngine` puts
them together.

Caveats:

* Read transactions are short (a page of a scan each): a long one would keep LMDB from reusing
  pages, and this process from growing its map or forking.
* Durability "relaxed" and "none" can lose the last commits at a power loss, and their revisions
  are then used again for other contents.
* The data file is as long as LMDB's map, with holes: it takes only the space of its contents. Copy
  it with a tool that keeps holes (`cp --sparse`, `rsync -S`, `tar -S`), and only while no process
  writes; `backup` copies a live store, without holes.
* Leases live in the store, not in a process: they outlive every process. Their clock is the
  machine's uptime; after a reboot each lease gets its full time again, from the first use of the
  store. (Outside Linux the system has no boot id, and a reboot may shorten or lengthen the time.)
* Only the owner may use files and directory (0600, 0700), whatever the umask, unless `mode` says
  otherwise when the store is created; a later file gets the permissions of `data.mdb`.
  Users who share a store need to read and write all of it (0o660): LMDB's locks are in a file, too.
* A directory that cannot be written is read without LMDB's locks: no process may write meanwhile.
"""

from snapkv.engine.lmdb.engine import LmdbEngine

__all__ = ["LmdbEngine"]
