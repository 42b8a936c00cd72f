"""Extensions of griffe: examples in docstrings are shown as code, awaited methods as methods."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?! *$).*)*", re.MULTILINE)


def fenced(text: str) -> str:
    """Return a docstring whose examples are in blocks of code."""
    return EXAMPLE.sub(
        lambda found: f"{found[1]}```pycon\n{found[0]}\n{found[1]}```", text.replace("\t", "    ")
    )


MADE = re.compile(r"(awaited|written|iterated)\((\w+)(?:\[.*?\])?\.(\w+)")


class Awaited(griffe.Extension):
    """Show what `snapkv.aio.methods` makes of a method with the signature of that method."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **rest: Any) -> None:
        """Take a package as griffe has read it."""
        for module in pkg["aio"].modules.values() if pkg.name == "snapkv" else ():
            for kind in module.classes.values():
                for name, value in [] if kind.is_alias else list(kind.members.items()):
                    made = value.is_attribute and MADE.match(str(value.value))
                    if made:
                        awaited = loader.modules_collection[module.resolve(made[2])]
                        method = awaited.all_members[made[3]]
                        kind.set_member(name, copied(name, method, made[1]))


def copied(name: str, method: griffe.Function, how: str) -> griffe.Function:
    """Return a method as it is awaited: its signature, and the first paragraph of its help."""
    returns: Any = method.returns
    if how == "iterated":
        returns = f"Async{returns}"
    made = griffe.Function(name, parameters=method.parameters, returns=returns)
    text = method.docstring.value.partition("\n\n")[0]
    made.docstring = griffe.Docstring(text, parent=made)
    if how != "iterated":
        made.labels.add("async")
    return made


class Examples(griffe.Extension):
    """Put the sessions of each docstring into blocks of code."""

    def on_instance(self, *, obj: griffe.Object, **rest: Any) -> None:
        """Take one module, class or function as griffe has read it."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
