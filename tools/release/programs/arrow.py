"""A store gives its tables."""

import snapkv

with snapkv.open("memory:") as store:
    store.save("a", b"1")
    assert store.at().to_arrow().num_rows == 1
    assert store.changes_to_arrow().num_rows == 1
    assert store.history_to_arrow().num_rows == 1
    assert store.commits_to_arrow().num_rows >= 1
