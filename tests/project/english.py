"""Phrases that the English guide of CONTRIBUTING.md replaces, and where they are.

List them: `python -m tests.project.english snapkv/timeline docs`.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.project import sources

ROOT = Path(__file__).parents[2]

# phrase -> what to write instead
PHRASES = {
    r"tells?|telling|told": "return, raise, report; a caller learns, reads or gets",
    r"whoever|whomever|nobody|somebody|everybody": "the caller, another process, no reader",
    r"(?<![a-z] )who(?! (?:changed|did))|and who|for who|whom|to who": "a noun before it",
    r"(?:is|are|was|were) no(?! (?:longer|more than|less than|earlier|later)\b)": "is not a",
    r"stands?|stood|standing": "is, exists, remains, is stored",
    r"(?:is|are|be|was|were) there\b(?! (?:any|a|an)\b)|what there is": "exists",
    r"(?:is|are|was|were) refused": "name the agent: the server rejects ...",
    r"(?:is|are|was|were) given up": "name the agent: the writer stops ...",
    r"at hand|by hand of|of our own|made again|has come|come again": "say it with the field's verb",
    r"led (?:here|there)|went by|goes by|comes by": "say it with the field's verb",
    r"others(?! than\b)": "other writers, other processes, other keys",
    r"word for|the word of|a word to|no word": "message, answer, outcome",
    r"those (?:of|that|who|which)": "repeat the noun",
}


class Found(NamedTuple):
    path: str
    line: int
    phrase: str
    text: str


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of what people read in a file: prose, comments, docstrings, messages."""
    text = path.read_text()
    if path.suffix == ".md":
        fenced = False
        for number, line in enumerate(text.splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            if not fenced and not line.startswith("    "):
                yield number, re.sub(r"`[^`]*`", "", line)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if "#" in line:  # of a string, or a comment: both are read
            yield number, line[line.index("#") :]
    for node in ast.walk(sources.tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line


def files(*roots: str) -> Iterator[Path]:
    for root in roots:
        path = ROOT / root
        found = [path] if path.is_file() else sorted([*path.rglob("*.py"), *path.rglob("*.md")])
        yield from (each for each in found if not each.name.endswith("_pb2.py"))


PATTERNS = {
    phrase: re.compile(rf"(?<![\w'-])(?:{phrase})(?![\w'-])", re.IGNORECASE) for phrase in PHRASES
}


ANY = re.compile(rf"(?<![\w'-])(?:{'|'.join(PHRASES)})(?![\w'-])", re.IGNORECASE)


def phrases_of(text: str) -> list[str]:
    if not ANY.search(text):
        return []
    return [phrase for phrase, pattern in PATTERNS.items() if pattern.search(text)]


JOINT = re.compile(r'"\s*\n\s*[a-z]*"')
"""Where a text goes on in the next line of code."""


def found_phrases(*roots: str) -> Iterator[Found]:
    for path in files(*roots):
        if not ANY.search(JOINT.sub("", path.read_text())):
            continue
        found = {
            (line, phrase): text.strip()
            for line, text in sentences(path)
            for phrase in phrases_of(text)
        }
        for (line, phrase), text in found.items():
            yield Found(str(path.relative_to(ROOT)), line, phrase, text)


QUESTION = re.compile(r"(?:What|How|Why|Who|Which|Whether|When|Where|From|Between|Below)\b")
QUANTITY = re.compile(r"(?:So|How) (?:many|much|long|often)\b")


def found_docstrings(pattern: re.Pattern[str], kind: type[ast.AST], *roots: str) -> list[str]:
    """Return the texts of modules, or of all (`ast.Expr`), that begin with a pattern."""
    found = []
    for path in files(*roots):
        if path.suffix == ".py":
            for node in (sources.tree(path), *sources.statements(path)):
                if isinstance(node, kind) and (text := _text(node)) and pattern.match(text):
                    found.append(f"{path.relative_to(ROOT)}: {text.splitlines()[0]}")
    return found


def _text(node: ast.AST) -> str:
    body = getattr(node, "body", [node])
    first = body[0] if isinstance(body, list) and body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first.value.value if isinstance(first.value.value, str) else ""
    return ""


if __name__ == "__main__":
    listed = list(found_phrases(*(sys.argv[1:] or ["snapkv", "cdcmeta", "docs", "README.md"])))
    for each in listed:
        print(f"{each.path}:{each.line}: {each.text}\n    [{each.phrase}] {PHRASES[each.phrase]}")
    print(len(listed))
