"""Run all benchmarks, or those named on the command line."""

import importlib
import sys

QUESTIONS = (
    "ring_lookup",
    "load_as_of",
    "load_now",
    "many_times",
    "durable_save",
    "hooks",
    "thread_saves",
    "updates",
    "list_as_of",
    "finding",
    "feed",
    "scaling",
    "cli_start",
    "etcd_open",
    "etcd_save",
    "etcd_processes",
    "etcd_load_as_of",
    "etcd_scan",
    "etcd_pages",
    "etcd_to_arrow",
    "etcd_clients",
    "aio",
    "spark_snapshot",
    "archive_spark",
    "archive_requests",
    "archive_as_of",
    "archive_load",
    "archive_memory",
    "record_beside_saves",
    "record_foreign",
    "kubernetes",
    "kubernetes_api",
    "spark_stream",
    "ui_pages",
    "fleet_at",
    "fleet_lag",
    "fleet_archives",
    "fleet_watch",
    "couch_edits",
    "couch_feed",
    "couch_longpoll",
    "couch_express",
    "generations",
    "generation_windows",
    "scheduler",
    "scheduler_storm",
    "captures_lost",
    "captures_mirror",
    "captures_idle",
    "captures_placing",
    "captures_restart",
    "captures_latency",
)

if __name__ == "__main__":
    unknown = set(sys.argv[1:]) - set(QUESTIONS)
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(sorted(unknown))}; there are {QUESTIONS}")
    for question in sys.argv[1:] or QUESTIONS:
        importlib.import_module(f"benchmarks.{question}").main()
