"""The surface of both packages as plain text: everything that a caller can rely on.

    python -m tools.surface            writes tests/project/surface/*.txt
    python -m tools.surface --check    prints what differs; exit code 1 if something does

A test compares the files with the code, so a change of the surface is a change of a file, which a
reviewer sees; write a line of CHANGELOG.md, too. Each file is one part:

    names.txt      public names with their signatures, attributes and builtin bases
    commands.txt   commands of both command lines: arguments, options, help
    exits.txt      exit codes, and the code of each error
    routes.txt     paths and methods of `cdcmeta serve` and `snapkv ui`
    spark.txt      options, schemas and error codes of the Spark formats, table functions
    metrics.txt    metrics with their types and labels

Bytes of stored records are on record elsewhere: tests/vectors, and the doctests of both DESIGN.md.
The help is that of the parameters, not its layout, which depends on the version of typer.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from enum import EnumType
from pathlib import Path
from types import FunctionType, UnionType
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "project" / "surface"
OURS = ("snapkv", "cdcmeta")


def main(arguments: list[str]) -> int:
    """Write the files, or compare them with the code; return the exit code."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m tools.surface [--check]\n")
        return 2
    differing = 0
    for name, lines in PARTS.items():
        path = FOLDER / f"{name}.txt"
        text = "".join(f"{line}\n" for line in lines())
        if not arguments:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text)
        elif difference := changed(path, text):
            differing += 1
            sys.stdout.write(difference)
    return 1 if differing else 0


def changed(path: Path, text: str) -> str:
    """Return a unified difference between a file and what it should be, "" if none."""
    before = path.read_text() if path.exists() else ""
    lines = before.splitlines(keepends=True), text.splitlines(keepends=True)
    return "".join(difflib.unified_diff(*lines, f"{path.name} in the tree", "the code"))


# --- names ---


def names() -> Iterator[str]:
    """Yield each public name with its signature; of a class its members, where it comes first."""
    first: dict[int, str] = {}
    for module, listed in public_modules().items():
        yield f"[{module}]"
        imported = importlib.import_module(module)
        for name in sorted(listed(imported)):
            value = getattr(imported, name)
            if inspect.isclass(value) and id(value) in first:
                yield f"class {name}: {first[id(value)]}"
                continue
            first[id(value)] = f"{module}.{name}"
            yield from _name(name, value)


def public_modules() -> dict[str, Callable[[Any], list[str]]]:
    """Return each module that docs/api.md lists, and what returns its public names."""
    text = (ROOT / "docs" / "api.md").read_text()
    found: dict[str, Callable[[Any], list[str]]] = {}
    for module, row in re.findall(r"^\| `([a-z_.]+)` \| (.*) \|$", text, re.MULTILINE):
        written = re.findall(r"`(\w+)`", row)
        found[module] = _classes_and(written) if "every class" in row else _only(written)
    return dict(sorted(found.items()))


def _only(written: list[str]) -> Callable[[Any], list[str]]:
    return lambda imported: written


def _classes_and(written: list[str]) -> Callable[[Any], list[str]]:
    def listed(imported: Any) -> list[str]:
        own = (n for n, v in vars(imported).items() if inspect.isclass(v) and not n.startswith("_"))
        return [*written, *(n for n in own if getattr(imported, n).__module__ == imported.__name__)]

    return listed


def _name(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        bases = [
            b.__name__ for b in value.__mro__[1:] if b.__module__.partition(".")[0] not in OURS
        ]
        yield f"class {name}{_signature(value)} <- {', '.join(bases)}"
        for member in sorted(_members(value)):
            yield f"    {_member(member, inspect.getattr_static(value, member, None))}"
    elif callable(value):
        yield f"{name}{_signature(value)}"
    else:
        # Python 3.14 has one class for both kinds of unions.
        kind = "UnionType" if isinstance(value, UnionType) else type(value).__name__
        yield f"{name}: {kind}{f' = {value!r}' if kind in ('int', 'str', 'float') else ''}"


def _members(value: type) -> set[str]:
    """Return the public attributes of a class that come from our code, inherited ones, too."""
    own = [each for each in value.__mro__ if each.__module__.partition(".")[0] in OURS]
    found = {name for each in own for name in (*vars(each), *inspect.get_annotations(each))}
    return {name for name in found if not name.startswith("_")}


def _member(name: str, value: Any) -> str:
    if isinstance(value, (staticmethod, classmethod)):
        return f"{type(value).__name__} {name}{_signature(value.__func__)}"
    if inspect.isfunction(value):
        return f"{name}{_signature(value)}"
    return name


def _signature(value: Any) -> str:
    if isinstance(value, EnumType):
        return "(value)"  # Python 3.14 shows another signature
    if not isinstance(value, (type, FunctionType)):
        return "(...)"  # of aliases and builtins 3.14 shows more
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        return "(...)"
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    text = re.sub(r"ForwardRef\('([^']*)'\)|'([^']*)'(?=[,)]| =|$)", r"\1\2", text)
    return re.sub(r"\b(?:snapkv|cdcmeta|collections\.abc|typing)\.(?:\w+\.)*", "", text)


# --- commands ---


def commands() -> Iterator[str]:
    """Yield each command of both command lines, with its parameters and its help."""
    from typer.main import get_command

    from cdcmeta.cli.app import app as cdcmeta_app
    from snapkv.cli.app import app as snapkv_app

    yield from _command("snapkv", get_command(snapkv_app))
    yield from _command("cdcmeta", get_command(cdcmeta_app))


def _command(words: str, command: Any) -> Iterator[str]:
    yield f"$ {words}"
    for line in (command.help or "").strip().splitlines():
        yield f"    {line}".rstrip()
    for param in command.params:
        yield f"    {_param(param)}"
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from _command(f"{words} {name}", command.commands[name])


def _param(param: Any) -> str:
    is_flag = bool(getattr(param, "is_flag", False))
    names = ", ".join(sorted([*param.opts, *param.secondary_opts]))
    kind = "" if is_flag else f" {param.metavar or param.type_descriptor.annotation.__name__}"
    notes = [
        *(["required"] if param.required else []),
        *(["several"] if param.multiple or param.nargs == -1 else []),
        *(["hidden"] if getattr(param, "hidden", False) else []),
        *([f"env {param.envvar}"] if param.envvar else []),
        *([] if callable(param.default) or not _is_shown(param) else [f"default {param.default}"]),
    ]
    help_text = " ".join((getattr(param, "help", None) or "").split())
    return f"{names}{kind}{''.join(f' [{each}]' for each in notes)}{help_text and f'  {help_text}'}"


def _is_shown(param: Any) -> bool:
    return param.default not in (None, False, (), "") and "UNSET" not in repr(param.default)


# --- exits ---


def exits() -> Iterator[str]:
    """Yield the exit codes of both command lines, and the code of each error."""
    from cdcmeta.cli import app as cdcmeta_app
    from snapkv.cli.exits import MEANINGS, code_of

    for code, text in MEANINGS.items():
        yield f"snapkv {int(code)} {text}"
    for name in ("DONE", "FAILED", "USAGE", "INTERRUPTED"):
        yield f"cdcmeta {getattr(cdcmeta_app, name)} {name.lower()}"
    errors = importlib.import_module("snapkv.errors")
    for name in sorted(_classes_and([])(errors)):
        error = getattr(errors, name)
        if issubclass(error, Exception) and not issubclass(error, Warning):
            found = code_of(error.__new__(error))
            yield f"{name} {'-' if found is None else int(found)}"


# --- routes ---


def routes() -> Iterator[str]:
    """Yield the methods and paths of both servers."""
    from cdcmeta.couch_http.couch_server import ROUTES
    from cdcmeta.ui import views as added
    from snapkv.ui.application import FIRST, FLEET_FIRST, OF_STORES
    from snapkv.ui.fleet.fleet_views import FLEET_VIEWS
    from snapkv.ui.store_views import VIEWS

    for path, methods in ROUTES.items():
        yield f"cdcmeta serve {','.join(sorted(methods))} {path}"
    for kind, paths in (
        ("a store", [*VIEWS, FIRST, *OF_STORES]),
        ("a fleet", [*FLEET_VIEWS, FLEET_FIRST]),
        (added.name, list(added.views)),
    ):
        for path in sorted(paths):
            yield f"snapkv ui, {kind}: {path}"


# --- Spark ---


def spark() -> Iterator[str]:
    """Yield options, schemas and error codes of the Spark formats, and SQL's table functions."""
    from cdcmeta.spark import feed_options as documents
    from cdcmeta.spark.feed_tasks import SCHEMA
    from snapkv.spark import functions, key_sink, read_options, source_options
    from snapkv.spark.schema import schema_of

    for name, views in read_options.KNOWN.items():
        yield f"snapkv, read: {name} ({', '.join(views)})"
    yield from (f"snapkv, write: {name}" for name in key_sink.KNOWN)
    yield from (f"cdcmeta.changes: {name}" for name in documents.KNOWN)
    yield from (f"engine: {name}" for name in source_options.ENGINE)
    for view in read_options.ALL:
        raw = {"readChangeFeed": "true"} if view == read_options.CHANGES else {"view": view}
        raw |= {"store": "etcd://localhost:2379"}
        raw |= {"startingVersion": "1"} if view in read_options.RANGED else {}
        yield f"schema of {view}: {_text_of(schema_of(read_options.parsed(raw)))}"
    yield f"schema of cdcmeta.changes: {_text_of(SCHEMA)}"
    yield from (f"SQL: {name}" for name in sorted(functions.FUNCTIONS))
    for module in ("snapkv.spark.errors", "cdcmeta.spark.feed_options"):
        codes = vars(importlib.import_module(module)).values()
        kept = {c for c in codes if isinstance(c, str) and re.fullmatch(r"(SNAPKV|CDCMETA)_\w+", c)}
        yield from (f"error [{code}]" for code in sorted(kept))


def _text_of(schema: Any) -> str:
    return schema if isinstance(schema, str) else str(schema.simpleString())


# --- metrics ---


def metrics() -> Iterator[str]:
    """Yield each metric, its type, its labels and its help."""
    from cdcmeta.metrics import CaptureMetrics
    from snapkv.metrics import prometheus

    families = [
        *prometheus.instruments().values(),
        *prometheus.families().values(),
        *CaptureMetrics(registry=None).describe(),
    ]
    for each in families:
        kind, labels = getattr(each, "type", None) or each._type, ", ".join(each._labelnames)
        name, text = (
            getattr(each, "name", None) or each._name,
            each.documentation if hasattr(each, "documentation") else each._documentation,
        )
        yield f"{kind} {name}({labels})  {text}"


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "names": names,
    "commands": commands,
    "exits": exits,
    "routes": routes,
    "spark": spark,
    "metrics": metrics,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
