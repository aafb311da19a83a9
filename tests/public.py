"""All that is public: the names of `regard`, what its public modules list, and the methods and properties of the classes."""

import inspect

import regard

HOMES = {name: home for names in regard._HOMES.values() for name, home in names.items()}
"""Public name -> the module that defines it."""


def listed(module: str) -> list[str]:
    """Returns the public names of a public module: those that it lists, or else all functions and classes that it defines."""
    names = vars(getattr(regard, module))
    defined = [name for name, value in names.items() if callable(value) and value.__module__ == names["__name__"]]
    return names.get("__all__") or [name for name in defined if not name.startswith("_")]


def names() -> dict[str, object]:
    """Returns the public functions, classes and data by name, such as "attend" and "masks.causal"."""
    return {name: getattr(regard, name) for name in HOMES} | {
        f"{module}.{name}": getattr(getattr(regard, module), name) for module in regard._MODULES for name in listed(module)
    }


def methods(value: object) -> dict[str, object]:
    """Returns the methods and properties that a public class defines or inherits from another class of the package."""
    classes = value.__mro__ if inspect.isclass(value) else ()
    found: dict[str, object] = {}
    for owner in reversed(classes):
        if owner.__module__.startswith("regard."):
            found |= {name: member for name, member in vars(owner).items() if _is_public_method(name, member)}
    return found


def _is_public_method(name: str, member: object) -> bool:
    has_code = inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod) or hasattr(member, "func")
    return has_code and (name == "__call__" or not name.startswith("_"))


def function(member: object) -> object:
    """Returns the function inside of a method, property or cached property."""
    for attribute in ("fget", "__func__", "func"):
        member = getattr(member, attribute, member)
    return member
