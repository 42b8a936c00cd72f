"""What an installation without an extra can do, and what it says where it cannot.

A process refuses to import what the extras at hand do not install: the requirements come from
pyproject.toml, what those require in turn from the packages that are installed here.
"""

import importlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sampling import first_of

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"test", "lint", "docs", "bench", "release"}
FOR_USERS = sorted(set(EXTRAS) - FOR_DEVELOPERS - {"all"})

NEEDS = {
    "snapkv.archive.engine": "archive",
    "snapkv.archive.objects": "archive",
    "snapkv.reading.arrow": "arrow",
    "snapkv.metrics": "metrics",
    "snapkv.spark": "spark",
    "snapkv.spark.local": "spark",
    "pyspark_snapkv": "spark",
    "cdcmeta.generations": "generations",
    "cdcmeta.couch_http": "http",
    "cdcmeta.metrics": "metrics",
    "cdcmeta.spark": "spark",
    "snapkv.ui": "ui",
    "cdcmeta.ui": "ui",
    "pyspark_cdcmeta": "spark",
}
"""Modules that need an extra."""

IMPORTS = """
import importlib
for module in {modules}:
    try:
        importlib.import_module(module)
    except ImportError as e:
        print(f"{{module}}: {{type(e).__module__}}.{{type(e).__qualname__}}: {{e}}")
"""
REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
"""


def installed_by(requirements: list[str]) -> set[str]:
    """Return the names of all packages that requirements bring along."""
    found: set[str] = set()
    waiting = [(Requirement(each), "") for each in requirements]
    while waiting:
        wanted, extra = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in found or not (wanted.marker is None or wanted.marker.evaluate({"extra": extra})):
            continue
        found.add(name)
        if name == "snapkv":
            waiting += [(Requirement(each), "") for own in wanted.extras for each in EXTRAS[own]]
            continue
        try:
            waiting += [(Requirement(each), "") for each in requires(name) or ()]
        except PackageNotFoundError:
            continue
    return found


@cache
def owners_of_modules() -> Mapping[str, list[str]]:
    return packages_distributions()


@cache
def refused(extra: str | None) -> frozenset[str]:
    """Return the top-level modules that an installation with one extra, or with none, lacks."""
    names = installed_by([*PROJECT["dependencies"], *(EXTRAS[extra] if extra else ())])
    ours = {"snapkv"}
    return frozenset(
        module
        for module, owners in owners_of_modules().items()
        if not {canonicalize_name(owner) for owner in owners} & (names | ours)
    )


def run(extra: str | None, code: str) -> "subprocess.CompletedProcess[str]":
    program = f"REFUSED = {set(refused(extra))!r}\n{REFUSE}{code}"
    return subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=120
    )


def test_the_matrix_refuses_what_it_should() -> None:
    for module in ("numpy", "pyarrow", "pyspark", "starlette", "uvicorn", "etcd3"):
        assert module in refused(None), module
    assert not {"lmdb", "grpc", "typer", "rich", "msgpack", "snapkv"} & refused(None)
    assert "starlette" not in refused("http")


HELPS = """
import json
from typer.main import get_command
from snapkv.cli import app as snapkv_cli
from cdcmeta.cli import app as cdcmeta_cli

failed = []
for cli, name in (snapkv_cli, "snapkv"), (cdcmeta_cli, "cdcmeta"):
    lines = [[]]
    for line in lines:
        command = get_command(cli.app)
        for word in line:
            command = command.commands[word]
        lines += [[*line, word] for word in getattr(command, "commands", ())]
    for line in lines:
        if cli.main([*line, "--help"]) != 0:
            failed.append([name, *line])
    print(name, len(lines))
sys.exit(json.dumps(failed) if failed else 0)
"""


@pytest.mark.parametrize("extra", first_of([None, "http"], one_in=2))
def test_every_help_needs_no_extra(extra: str | None) -> None:
    done = run(extra, HELPS)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    counts = {
        line.split()[0]: int(line.split()[1])
        for line in done.stdout.splitlines()
        if line.startswith(("snapkv ", "cdcmeta ")) and line.split()[-1].isdigit()
    }
    assert counts["snapkv"] > 15
    assert counts["cdcmeta"] > 8


def test_a_url_names_the_extra_that_it_lacks() -> None:
    code = "import snapkv\nsnapkv.open_archive('s3://bucket/path')"
    last = run("arrow", code).stderr.splitlines()[-1]
    assert last.startswith("snapkv.errors.MissingExtraError: No module named 'obstore'")
    assert last.endswith("for archives in object stores: pip install 'snapkv[archive]'")


def test_tables_of_iceberg_name_the_extra_that_they_lack() -> None:
    last = run("archive", "import snapkv.archive.iceberg").stderr.splitlines()[-1]
    assert last.startswith("snapkv.errors.MissingExtraError: No module named 'pyiceberg")
    assert last.endswith("for tables of Iceberg: pip install 'snapkv[iceberg]'")
    assert run("iceberg", "import snapkv.archive.iceberg").returncode == 0


def test_an_import_names_the_extra_that_it_lacks() -> None:
    done = run(None, IMPORTS.format(modules=sorted(NEEDS)))
    assert done.returncode == 0, done.stderr
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert said.keys() == NEEDS.keys()
    for module, error in said.items():
        assert error.startswith("snapkv.errors.MissingExtraError: No module named ")
        assert error.endswith(f"pip install 'snapkv[{NEEDS[module]}]'")


@pytest.mark.parametrize("extra", sorted({*NEEDS.values()}))
def test_the_extra_that_it_names_is_enough(extra: str) -> None:
    modules = sorted(module for module in NEEDS if NEEDS[module] == extra)
    done = run(extra, "".join(f"import {module}\n" for module in modules))
    assert done.returncode == 0, done.stderr


def test_what_needs_no_extra_works_without() -> None:
    code = """
import snapkv, cdcmeta, cdcmeta.scheduler
with snapkv.open("memory:") as store:
    cdcmeta.ChangesDB(store, "db").create().put({"_id": "a"})
"""
    done = run(None, code)
    assert done.returncode == 0, done.stderr


def test_a_page_names_the_extra_that_it_lacks() -> None:
    """The page itself does without NumPy; only its views of generations do not."""
    code = """
from cdcmeta.ui import views
import snapkv
from snapkv.ui import Context, Site, Source
from snapkv.ui.url_state import State
with snapkv.open("memory:") as store:
    site = Site(Source(store), extra_views=[views])
    print(views.views["/databases"](Context(site, State("/databases"))).title)
    views.views["/generations"](Context(site, State("/generations")))
"""
    done = run("ui", code)
    assert done.stdout == "Databases\n"
    last = done.stderr.splitlines()[-1]
    assert last.startswith("snapkv.errors.MissingExtraError: No module named 'numpy'")
    assert last.endswith("pip install 'snapkv[generations]'")


COMMANDS = {
    ("serve", "--port", "0"): "http",
    ("generations", "list"): "generations",
    ("generations", "expire", "7d"): "generations",
    ("generations", "make", "no-ring.json"): "generations",
    ("upgrade",): "generations",
    ("streams", "of", "now"): "generations",
    ("streams", "at", "now", "key"): "generations",
}


@pytest.mark.long_after(2)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_names_the_extra_that_it_lacks(words: tuple[str, ...], tmp_path: Path) -> None:
    """Before it makes or changes anything."""
    place = tmp_path / "meta"
    line = [words[0], *words[1:], "--store", f"lmdb:{place}"]
    code = f"from cdcmeta.cli import main\nsys.exit(main({json.dumps(line)}))"
    done = run(None, code)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cdcmeta: No module named ")
    assert done.stderr.endswith(f"pip install 'snapkv[{COMMANDS[words]}]'\n")
    assert done.stderr.count("\n") == 1
    assert not place.exists()


@pytest.mark.parametrize("scheme", ["lmdb", "memory"])
def test_a_table_names_the_extra_that_it_lacks(scheme: str, tmp_path: Path) -> None:
    url = {"lmdb": f"lmdb:{tmp_path / 'meta'}", "memory": "memory:"}[scheme]
    code = f"""
import snapkv
with snapkv.open({url!r}) as store:
    store.save("a", b"1")
    store.at().to_arrow()
"""
    done = run(None, code)
    assert done.stderr.splitlines()[-1].endswith("for tables: pip install 'snapkv[arrow]'")
    assert run("arrow", code).returncode == 0


def test_the_help_of_serve_shows_the_servers_own_defaults() -> None:
    from cdcmeta.cli import server_commands
    from cdcmeta.couch_http import Limits
    from cdcmeta.couch_http import couch_server as server

    serve = server_commands.command_kit.HOST, server_commands.PORT
    assert serve == (server.HOST, server.PORT)
    defaults = Limits()
    assert defaults.body_bytes == server_commands.BODY_BYTES_MAX
    assert defaults.bulk_bytes == server_commands.BULK_BYTES_MAX


def test_a_mistake_of_our_own_is_blamed_on_no_extra() -> None:
    from snapkv.base.extras import requires_extra

    wrong = pytest.raises(ModuleNotFoundError, match=r"^No module named 'snapkv\.nowhere'$")
    with wrong, requires_extra("arrow", "tables"):
        importlib.import_module("snapkv.nowhere")
