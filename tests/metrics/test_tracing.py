"""The spans of commits, lookups and watches."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from store.noting import Noting

import snapkv
from snapkv.metrics import Tracing


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


def test_spans_of_what_a_caller_does(provider, exporter):
    tracer = provider.get_tracer("service")
    with (
        snapkv.open("memory:", hooks=Tracing(provider)) as store,
        tracer.start_as_current_span("r"),
    ):
        saved = store.save("a-key", b"a-value")
        store.load("a-key", saved)
        store.at(saved)
        store.tick()
        list(store.watch(since=0, timeout=0))
    *spans, request = exporter.get_finished_spans()
    assert [span.name for span in spans] == [
        "snapkv.commit",
        "snapkv.load",
        "snapkv.at",
        "snapkv.tick",
        "snapkv.watch",
    ]
    for span in spans:
        assert span.parent.span_id == request.context.span_id
        assert span.attributes["db.namespace"] == "default"
        assert "a-" not in str(dict(span.attributes))
    commit, load, at, _, watch = spans
    assert request.start_time <= commit.start_time <= commit.end_time <= load.start_time
    assert commit.attributes["snapkv.timestamp"] == str(saved)
    assert commit.attributes["snapkv.outcome"] == "committed"
    assert (load.attributes["snapkv.path"], at.attributes["snapkv.path"]) == ("ring", "ring")
    assert watch.attributes["snapkv.changes"] == 1
    assert watch.start_time <= commit.end_time, "a delivery begins with the commit"


def test_a_failed_commit(provider, exporter):
    with (
        snapkv.open("memory:", hooks=Tracing(provider)) as store,
        pytest.raises(snapkv.ConflictError),
    ):
        store.commit(puts={"a-key": b"1"}, guards=[snapkv.AtRevision("a-key", 7)])
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "ConflictError"
    assert "a-key" not in span.to_json()


def test_without_lookups(provider, exporter):
    noting = Noting()
    hooks = [Tracing(provider, lookups=False), noting]
    with snapkv.open("memory:", hooks=hooks) as store:
        store.load("k", store.save("k", b"1"))
    assert [span.name for span in exporter.get_finished_spans()] == ["snapkv.commit"]
    assert "LookupEvent" in [type(event).__name__ for event in noting.events]
