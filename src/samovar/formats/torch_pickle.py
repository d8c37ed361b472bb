"""A check of the calls in a pickle by torch.save: followed on a stack of marks, without making anything.

torch's restricted reader also calls functions that need no tensors. Some of them make much of a few bytes, such as
`bytearray(1 << 40)`, and so does a list of all elements of a tensor whose strides are 0.
"""

import pickletools
from typing import BinaryIO, Final

# "module name" as a pickle has it; fix_imports of old protocols writes __builtin__.
_REBUILD: Final = tuple(
    f"torch._utils _rebuild_{what}"
    for what in ("tensor", "tensor_v2", "tensor_v3", "parameter", "parameter_with_state")
)
_PLAIN: Final = (
    *("torch Size", "torch device", "collections Counter"),
    *("builtins set", "builtins complex", "__builtin__ set", "__builtin__ complex"),
)
_ORDERED: Final = "collections OrderedDict"
_MADE: Final = object()  # by a call
_DICTIONARY: Final = object()
_CHANGES: Final = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD")  # of the first that they take


def require_only_tensors(file: BinaryIO) -> None:
    """Read the pickle that begins here. Raises ValueError if it calls anything that no state_dict needs."""
    stack: list[object] = []
    marks: list[int] = []
    memo: dict[object, object] = {}
    for opcode, argument, _ in pickletools.genops(file):
        name, before = opcode.name, opcode.stack_before
        if name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        else:
            is_marked = pickletools.stackslice in before
            start = (marks.pop() if is_marked else len(stack)) - (len(before) - 2 * is_marked)
            taken = stack[start:]
            del stack[start:]
            if opcode.stack_after:
                stack.append(memo[argument] if "BINGET" in name else _result(name, argument, taken))


def _result(name: str, argument: object, taken: list[object]) -> object:
    if name == "GLOBAL":
        return argument
    if name == "EMPTY_DICT":
        return _DICTIONARY
    if "TUPLE" in name:
        return tuple(taken)
    if name == "REDUCE":
        _check(*taken)
    if name == "NEWOBJ" or (name == "BUILD" and taken[1] is not _DICTIONARY):
        raise ValueError(f"its pickle has {name} with what no state_dict needs")
    return taken[0] if name in _CHANGES else _MADE if name in ("REDUCE", "BINPERSID") else None


def _check(called: object, arguments: object) -> None:
    """Raise ValueError unless it is cheap: a tensor of stored values, or a container of values that stand here."""
    name = called if isinstance(called, str) else ""
    is_cheap = isinstance(arguments, tuple) and (
        name in _REBUILD
        or (name == _ORDERED and not arguments)
        or (name in _PLAIN and not any(each is _MADE for each in arguments))
    )
    if not is_cheap:
        raise ValueError(f"its pickle calls {name.replace(' ', '.') or 'a value'} as no state_dict needs")
