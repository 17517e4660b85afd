"""What `import admitone` offers: each name with its signature and its docstring."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final, ForwardRef

from pydantic import BaseModel
from scripts.reference.markdown import paragraph, table

import admitone
from admitone.core.errors import AdmitoneError

_SHOWN: Final = (type(None), bool, int, float, str, tuple)


class _Text(str):
    """Stands in a signature as it is, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def surface() -> str:
    """Return the functions, the classes and the errors."""
    offered = {name: getattr(admitone, name) for name in sorted(admitone.__all__, key=str.lower)}
    errors = [each for each in offered.values() if _is_error(each)]
    classes = [each for each in offered.values() if inspect.isclass(each) and not _is_error(each)]
    functions = [each for each in offered.values() if not inspect.isclass(each)]
    return "\n\n".join(
        (
            "## Functions",
            *(f"### {each.__name__}\n\n{_code(each)}\n\n{_about(each)}" for each in functions),
            "## Classes",
            *map(_class, classes),
            "## Errors",
            _errors(errors),
        )
    )


def _is_error(offered: Any) -> bool:
    return inspect.isclass(offered) and issubclass(offered, AdmitoneError)


def _class(offered: type) -> str:
    above = [each.__name__ for each in offered.__mro__[1:] if each.__name__ in admitone.__all__]
    inherited = [f"It has everything of `{name}`, too." for name in above]
    is_opened = getattr(offered, "_is_protocol", False) or issubclass(offered, BaseModel)
    made = [] if is_opened else [_code(offered)]
    members = list(_members(offered))
    listed = [table(("", "what it does"), members)] if members else []
    return "\n\n".join((f"### {offered.__name__}", *made, _about(offered), *inherited, *listed))


def _members(offered: type) -> Iterator[tuple[str, str]]:
    for name, kept in vars(offered).items():
        member = getattr(offered, name)
        if name.startswith("_") or not (isinstance(kept, property) or callable(member)):
            continue
        shown = name if isinstance(kept, property) else f"{name}{_signature(member)}"
        yield f"`{shown}`", " ".join((inspect.getdoc(member) or "").partition("\n\n")[0].split())


def _errors(errors: list[type[AdmitoneError]]) -> str:
    return table(
        ("error", "code", "exit code", "what happened"),
        (
            (
                f"`{each.__name__}`",
                f"`{each.code}`",
                str(each.exit_code),
                inspect.getdoc(each) or "",
            )
            for each in errors
        ),
    )


def _code(offered: Any) -> str:
    """Return how it is called, with a line for each argument where it would be too long for one."""
    name, signature = offered.__name__, _signature(offered)
    if len(f"{name}{signature}") <= 110:
        return f"    {name}{signature}"
    arguments = str(signature.replace(return_annotation=inspect.Signature.empty))[1:-1]
    lines = [f"        {each}," for each in arguments.split(", ")]
    return "\n".join((f"    {name}(", *lines, f"    ) -> {signature.return_annotation}"))


def _signature(offered: Any) -> inspect.Signature:
    signature = inspect.signature(offered)
    kept = [each for name, each in signature.parameters.items() if name != "self"]
    return inspect.Signature(
        [
            each.replace(annotation=_plain(each.annotation), default=_plain_default(each.default))
            for each in kept
        ],
        return_annotation=_plain(signature.return_annotation),
    )


def _plain(annotation: Any) -> Any:
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    return _Text(annotation) if isinstance(annotation, str) else annotation


def _plain_default(default: Any) -> Any:
    """An object of ours is not shown: its text may be long, or hold an address in memory."""
    return (
        default if type(default) in _SHOWN or default is inspect.Parameter.empty else _Text("...")
    )


def _about(offered: Any) -> str:
    text = inspect.getdoc(offered) or ""
    return "\n\n".join(paragraph(part) for part in text.split("\n\n"))
