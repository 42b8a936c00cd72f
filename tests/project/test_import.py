"""Services import snapkv: it must not drag in what only some uses need."""

import subprocess
import sys

import pytest

HEAVY = {
    "grpc",
    "google",
    "pyarrow",
    "pyspark",
    "pandas",
    "numpy",
    "obstore",
    "opentelemetry",
    "prometheus_client",
    "pyiceberg",
    "typer",
    "rich",
    "click",
    "lmdb",
    "yaml",
}


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    return set(done.stdout.split())


def test_importing_snapkv_is_light() -> None:
    assert not HEAVY & loaded_by("import snapkv")


def test_only_the_engine_of_the_url_is_imported() -> None:
    assert "lmdb" not in loaded_by("import snapkv; snapkv.open('memory:').close()")


USE = """
import snapkv
s = snapkv.open('memory:x')
t = s.save('a', b'1')
s.load('a', t)
s.revisions_at([t, 0])
[*s.at(t).items(), *s.history('a'), *s.commits(), *s.diff(0), *s.watch(since=0, timeout=0)]
o = snapkv.observe('memory:x', prefix='')
o.at().count()
"""
TABLES = (
    "s.at().to_arrow()",
    "s.changes_to_arrow()",
    "s.history_to_arrow()",
    "s.commits_to_arrow()",
    "o.changes_to_arrow()",
)


@pytest.mark.slow
def test_a_store_in_use_needs_no_arrow() -> None:
    assert not {"pyarrow", "pandas", "numpy"} & loaded_by(USE)
    assert "pyarrow" in loaded_by(USE + TABLES[0])


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.long_after(2)
def test_without_pyarrow_a_table_says_what_to_install(table: str) -> None:
    code = f"import sys; sys.modules['pyarrow'] = None{USE}{table}"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("snapkv.errors.MissingExtraError: ")
    assert last.endswith("for tables: pip install 'snapkv[arrow]'")


def test_loggers_are_quiet_until_a_service_logs() -> None:
    code = """
import logging, snapkv, cdcmeta
for name in ("snapkv.committer.recovery", "cdcmeta.scheduler"):
    logging.getLogger(name).error("not shown")
logging.basicConfig()
logging.getLogger("snapkv.committer.recovery").warning("shown")
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == "WARNING:snapkv.committer.recovery:shown\n"
