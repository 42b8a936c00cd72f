"""Answers that are larger than a channel takes, as those of clients that are borrowed may be."""

import pytest
from etcd_server import EtcdServer

import snapkv
from snapkv.engine.etcd import grpc_client as rpc
from snapkv.errors import EngineUnavailableError

pytestmark = pytest.mark.slow


def test_many_ranges_come_in_several_answers(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"grpc.max_receive_message_length": 60_000}
    options = tuple({**dict(rpc._OPTIONS), **limits}.items())
    monkeypatch.setattr(rpc, "_OPTIONS", options)
    with snapkv.open(etcd.url, name="answers") as store:
        wanted = {f"k{n:02}": b"%d" % n * 10_000 for n in range(10)}
        for key, value in wanted.items():
            store.save(key, value)
        ranges = [(key, key + "\0") for key in wanted]
        assert store.at().items_of(ranges) == [[item] for item in wanted.items()]
        with pytest.raises(EngineUnavailableError):
            store.at().items_of([("k", "l")])  # one range is not divided
        assert len(store.at().items_of([("k", "l")], limit=2)[0]) == 2
