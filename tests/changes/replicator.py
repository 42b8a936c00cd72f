"""A replicator between two replicas: from a checkpoint on, which both sides must remember."""

from __future__ import annotations

from cdcmeta.errors import DocumentNotFoundError

from .replica_changes import Replica


def copy(
    source: Replica,
    target: Replica,
    fate: str = "fine",
    *,
    stop: int | None = None,
    together: bool = False,
    blind: bool = False,
) -> int:
    """Bring what one has to the other; return how many revisions were sent.

    It may break off after `stop` of them, before it took notes; `fate` is that of the last request.
    `together` sends them in one commit; `blind` sends what is there already, too.
    """
    page = source.db.changes(since=_checkpoint(source, target), style="all_docs")
    wanted = {row.id: list(row.revs) for row in page.rows}
    found = {id: each.missing for id, each in target.db.missing_revs(wanted).items()}
    unknown = {
        id: tuple(rev for rev in revs if not target.plain.knows(id, rev))
        for id, revs in wanted.items()
    }
    assert found == {id: revs for id, revs in unknown.items() if revs}
    docs = [
        doc
        for id, revs in (wanted if blind else found).items()
        for doc in source.db.open_revs(id, revs)
    ]
    assert not any(isinstance(doc, str) for doc in docs)
    sent = docs[:stop]
    batches = [sent] if together else [[doc] for doc in sent]
    for number, batch in enumerate(batches, 1):
        target.replicate(batch, fate if number == len(batches) else "fine")
    if len(sent) == len(docs):
        _take_note(source, target, str(page.last_seq))
    return len(sent)


def _checkpoint(source: Replica, target: Replica) -> str:
    """Return where to go on: the beginning unless both remember the same."""
    notes = [_note(each, source) for each in (source, target)]
    return notes[0]["seq"] if notes[0]["seq"] == notes[1]["seq"] else "0"


def _take_note(source: Replica, target: Replica, seq: str) -> None:
    for each in (source, target):
        each.db.local.put(_name(source), _note(each, source) | {"seq": seq})


def _note(holder: Replica, source: Replica) -> dict:
    try:
        note = holder.db.local.get(_name(source))
    except DocumentNotFoundError:
        return {"seq": "0"}
    return {"seq": note["seq"], "_rev": note["_rev"]}


def _name(source: Replica) -> str:
    return f"from-{source.db.name}"
