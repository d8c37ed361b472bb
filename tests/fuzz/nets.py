"""Mutated prototxts of nets and solvers."""

import random
import re
from collections.abc import Iterator

from tests.fuzz.case import READ, REFUSED, Case, Write, damaged, file_case
from tests.fuzz.material import NET, OLD_NET, OLDEST_NET, SOLVER

_TOKEN = re.compile(r'"[^"]*"|[{}:]|[^\s{}:"]+')
_NUMBERS = (
    "0",
    "-1",
    "1",
    "1.5",
    "2147483647",
    "2147483648",
    "4294967295",
    "99999999999999999999",
    "0x7fffffff",
    "1e38",
    "1e400",
    "nan",
    "-inf",
    "TRUE",
)
_STRINGS = ('""', '"../../../etc/passwd"', r'"a\nb\033[31m"', '"' + "y" * 100_000 + '"', "'single'", '"two" "parts"')
_WORDS = ("layer", "{", "}", "<", "[", ";", "'", "#", "\0", "\\", "é", "include")
_LONG = "x" * 10_000_000
_LESS_LONG = "x" * 3_000_000  # within what a prototxt may have
_RELU = 'layer {{ name: "r{0}" type: "ReLU" bottom: "{1}" top: "r{0}" }}\n'


def net_cases() -> Iterator[Case]:
    """Random and chosen mutations of whole nets."""
    for index, text in enumerate(_mutated(NET, 60, seed=1)):
        yield file_case("net", f"tokens {index}", "net.prototxt", text.encode())
    for name, old in {"old": OLD_NET, "oldest": OLDEST_NET}.items():
        for index, text in enumerate(_mutated(old, 16, seed=len(name))):
            yield file_case("net", f"{name} tokens {index}", "net.prototxt", text.encode())
    for name, content in damaged(NET.encode(), 24, seed=3):
        yield file_case("net", name, "net.prototxt", content)
    for name, bad in _bad_nets().items():
        yield file_case("net", name, "net.prototxt", bad if isinstance(bad, bytes) else bad.encode(), expected=REFUSED)
    for name, text in _odd_nets().items():
        yield file_case("net", name, "net.prototxt", text.encode(), expected=READ)


def solver_cases() -> Iterator[Case]:
    """The solver's net lies beside it, sound."""
    yield _solver("sound", SOLVER.encode(), expected=READ)
    for index, text in enumerate(_mutated(SOLVER, 30, seed=4)):
        yield _solver(f"tokens {index}", text.encode())
    for name, content in damaged(SOLVER.encode(), 16, seed=5):
        yield _solver(name, content)
    for name, text in _bad_solvers().items():
        yield _solver(name, text.encode(), expected=REFUSED)


def _solver(name: str, content: bytes, expected: str = "") -> Case:
    case = file_case("solver", name, "solver.prototxt", content, expected)
    return Case(case.name, case.kind, _beside_net(case.write), case.expected)


def _beside_net(write: Write) -> Write:
    def both(folder):
        (folder / "net.prototxt").write_text(NET)
        return write(folder)

    return both


def _mutated(text: str, count: int, seed: int) -> Iterator[str]:
    """`count` texts with one or two tokens changed for others of their kind, doubled, swapped or left out."""
    chance = random.Random(seed)
    for _ in range(count):
        tokens = _TOKEN.findall(text)
        for _ in range(chance.choice((1, 1, 2))):
            _mutate(tokens, chance)
        yield "\n".join(tokens)


def _mutate(tokens: list[str], chance: random.Random) -> None:
    """Most often a value, else any token."""
    values = [index for index, token in enumerate(tokens) if index and tokens[index - 1] == ":"]
    if chance.random() < 0.2:
        _mutate_structure(tokens, chance)
        return
    at = chance.choice(values)
    same_kind = [tokens[index] for index in values if (tokens[index][0] == '"') == (tokens[at][0] == '"')]
    tokens[at] = chance.choice(chance.choice((same_kind, _STRINGS if tokens[at][0] == '"' else _NUMBERS)))


def _mutate_structure(tokens: list[str], chance: random.Random) -> None:
    at, other = chance.randrange(len(tokens)), chance.randrange(len(tokens))
    way = chance.randrange(4)
    if way == 0:
        del tokens[at]
    elif way == 1:
        tokens[at:at] = [tokens[at]] * chance.choice((1, 1000))
    elif way == 2:
        tokens[at], tokens[other] = tokens[other], tokens[at]
    else:
        tokens[at] = chance.choice(_WORDS)


def _changed(old: str, new: str, text: str = NET) -> str:
    assert old in text, old
    return text.replace(old, new, 1)


def _chain(count: int) -> bytes:
    return (NET + "".join(_RELU.format(i, f"r{i - 1}" if i else "conv") for i in range(count))).encode()


def _nested(opening: str, closing: str, depth: int = 10_000) -> str:
    return NET + opening * depth + closing * depth


_INPUT = "dim: 2 dim: 3 dim: 8 dim: 8"
_CONV = "num_output: 4 kernel_size: 3 stride: 1 pad: 1"


def _bad_nets() -> dict[str, str | bytes]:
    return {**_bad_texts(), **_bad_numbers(), **_bad_wiring(), **_bad_names(), **_bad_settings()}


def _bad_texts() -> dict[str, str | bytes]:
    return {
        "empty": "",
        "nothing but space": " \n\t\r\n" * 1000,
        "4 MB of spaces and more": " " * ((4 << 20) + 1),
        "zeros": "\0" * 5000,
        "a million layers": "layer{}" * 1_000_000,
        "100,000 layers without a name": "layer {}" * 100_000,
        "a million unknown fields": "a:1\n" * 1_000_000,
        "braces 10,000 deep": _nested("layer { ", "} "),
        "angles 10,000 deep": _nested("layer < ", "> "),
        "lists 10,000 deep": _nested("input: [", "]"),
        "braces 10,000 deep without a name": _nested("{", "}"),
        "unknown messages 10,000 deep": _nested("what { ", "} "),
        "10,000 closing braces": NET + "}" * 10_000,
        "byte order mark in the middle": NET + "\ufeff" + NET,
        "utf-16": NET.encode("utf-16"),
        "not utf-8": NET.encode().replace(b"small", b"sm\xff\xfell"),
        "html": "<!DOCTYPE html><html><body>404</body></html>",
        "extension": NET + "[type.googleapis.com/google.protobuf.Any] { value: '' }",
        "number of 3 MB": NET + "input_dim: " + "9" * 3_000_000,
    }


def _bad_numbers() -> dict[str, str | bytes]:
    return {
        "negative size": _changed(_INPUT, "dim: 2 dim: -3 dim: 8 dim: 8"),
        "size 0": _changed(_INPUT, "dim: 2 dim: 0 dim: 8 dim: 8"),
        "size above 64 bits": _changed(_INPUT, "dim: 2 dim: 99999999999999999999 dim: 8 dim: 8"),
        "sizes of 2 to the 63rd": _changed(_INPUT, "dim: 9223372036854775807 dim: 9223372036854775807 dim: 2 dim: 2"),
        "300,000 axes": _changed(_INPUT, "dim: 1 " * 300_000),
        "33 axes": _changed(_INPUT, "dim: 2 dim: 3 " + "dim: 1 " * 31),
        "num_output of 4 thousand million": _changed(_CONV, "num_output: 4294967295 kernel_size: 3"),
        "kernel of 4 thousand million": _changed(_CONV, "num_output: 4 kernel_size: 4294967295"),
        "pad of 4 thousand million": _changed(_CONV, "num_output: 4 kernel_size: 3 pad: 4294967295"),
        "stride 0": _changed(_CONV, "num_output: 4 kernel_size: 3 stride: 0"),
        "dilation of 4 thousand million": _changed(_CONV, "num_output: 4 kernel_size: 3 dilation: 4294967295"),
        "group 0": _changed(_CONV, _CONV + " group: 0"),
        "no number of outputs": _changed(_CONV, "kernel_size: 3"),
        "alpha is not a number": _changed("alpha: 0.1", "alpha: nan"),
        "beta is infinite": _changed("beta: 0.75", "beta: inf"),
        "local_size of 4 thousand million": _changed("local_size: 3", "local_size: 4294967294"),
        "std is not a number": _changed("std: 0.01", "std: nan"),
        "value is infinite": _changed("value: 0.1", "value: -inf"),
        "loss weight is not a number": _changed("loss_weight: 1", "loss_weight: nan"),
        "lr_mult is not a number": _changed("lr_mult: 1", "lr_mult: nan"),
        "100,000 parameters of two": _changed("param { lr_mult: 2 }", "param { lr_mult: 2 } " * 100_000),
        "100 slices and 3 tops": _changed("slice_point: 1", "slice_point: 1 " * 100),
        "slice beyond the axis": _changed("slice_point: 1", "slice_point: 4000000000"),
        "reshape to sizes that overflow": _changed("dim: 0 dim: -1", "dim: 4611686018427387904 dim: 4 dim: -1"),
        "reshape to two unknown sizes": _changed("dim: 0 dim: -1", "dim: -1 dim: -1"),
        "axis out of range": _changed("concat_param { axis: 1", "concat_param { axis: 2147483647"),
    }


def _bad_wiring() -> dict[str, str | bytes]:
    return {
        "a layer twice": NET + NET.splitlines()[-1].replace('top: "loss"', 'top: "loss2"') + "\n",
        "a top twice": _changed('top: "norm"', 'top: "data"'),
        "a bottom of no layer": _changed('bottom: "norm"', 'bottom: "nowhere"'),
        "a circle": _changed('bottom: "data" top: "conv"', 'bottom: "ip" top: "conv"'),
        "its own bottom": _changed('bottom: "data" top: "conv"', 'bottom: "conv" top: "conv"'),
        "old layers beside new ones": NET + OLD_NET,
        "input_dim of 10 numbers": OLD_NET.replace("input_dim: 2", "input_dim: 2 " * 7),
        "old layer of no type": OLD_NET.replace("type: RELU", "type: NONE"),
    }


def _bad_names() -> dict[str, str | bytes]:
    return {
        "type of 10 MB": _changed('type: "ReLU"', f'type: "{_LONG}"'),
        "bottom of 3 MB": _changed('bottom: "norm"', f'bottom: "{_LESS_LONG}"'),
        "field of 3 MB": NET + f"{_LESS_LONG}: 1",
        "enum of 3 MB": _changed("pool: MAX", f"pool: {_LESS_LONG}"),
        "type with escapes": _changed('type: "ReLU"', r'type: "a\n\nTraceback\r\033[2J\000"'),
        "bottom with escapes": _changed('bottom: "norm"', r'bottom: "a\nb\033]0;title\007"'),
        "name of 3 MB": _changed('name: "small"', f'name: "{_LESS_LONG}"'),
        "layer name of 3 MB": _changed('name: "relu"', f'name: "{_LESS_LONG}"'),
        "layer name with escapes": _changed('name: "relu"', r'name: "a\n../../b\033[31m\000"'),
        "net name with escapes": _changed('"small"', r'"a\nb\033[2J"'),
        "filler of no kind": _changed('type: "xavier"', 'type: "../../xavier"'),
    }


def _bad_settings() -> dict[str, str | bytes]:
    return {
        "python layer": _with("Python", "ip", 'python_param { module: "os" layer: "x" }'),
        "dummy data of 2 to the 40th": _with(
            "DummyData", "", "dummy_data_param { shape { dim: 1048576 dim: 1048576 } }"
        ),
        "tile of 2 to the 31st": _with("Tile", "ip", "tile_param { axis: 0 tiles: 2147483647 }"),
        "embed of 2 to the 62nd": _with(
            "Embed", "label", "embed_param { input_dim: 2147483648 num_output: 2147483648 }"
        ),
        "weights in the prototxt": _with("ReLU", "ip", "blobs { data: 1 }"),
        "matrix elsewhere": _with(
            "InfogainLoss", 'ip" bottom: "label', 'infogain_loss_param { source: "/etc/passwd" }'
        ),
    }


def _with(kind: str, bottom: str, settings: str) -> str:
    """NET and one more layer."""
    taken = f'bottom: "{bottom}"' if bottom else ""
    return NET + f'layer {{ name: "more" type: "{kind}" {taken} top: "more" {settings} }}\n'


def _odd_nets() -> dict[str, str]:
    return {
        "byte order mark": "\ufeff" + NET,
        "sound": NET,
        "sound and old": OLD_NET,
        "sound and oldest": OLDEST_NET,
        "line ends of old Macs": NET.replace("\n", "\r"),
        "line ends of Windows": NET.replace("\n", "\r\n"),
        "names that are no paths": _changed('"small"', '"../../a"').replace('"conv"', '"/tmp/conv/../x"'),
        "names in other letters": _changed('"small"', '"étroit 猫"').replace('"conv"', '"свёртка"'),
        "no line ends": NET.replace("\n", " "),
        "comment of 3 MB": NET + "# " + _LESS_LONG,
        "5,000 layers": _chain(5000).decode(),
        "100,000 stages": _changed("include { phase: TEST }", "include { phase: TEST " + 'stage: "a" ' * 100_000 + "}"),
    }


def _bad_solvers() -> dict[str, str]:
    return {
        "empty": "",
        "no net": _changed('net: "net.prototxt"', "", SOLVER),
        "net is the root": _changed("net.prototxt", "/", SOLVER),
        "net is a device": _changed("net.prototxt", "/dev/zero", SOLVER),
        "net is the solver": _changed("net.prototxt", "solver.prototxt", SOLVER),
        "net of 3 MB": _changed("net.prototxt", _LESS_LONG, SOLVER),
        "net with a zero byte": _changed("net.prototxt", r"net\000.prototxt", SOLVER),
        "net with line ends": _changed("net.prototxt", r"a\nb\r\033[2Jc", SOLVER),
        "rate is not a number": _changed("base_lr: 0.01", "base_lr: nan", SOLVER),
        "rate is infinite": _changed("base_lr: 0.01", "base_lr: 1e400", SOLVER),
        "negative steps": _changed("max_iter: 3", "max_iter: -3", SOLVER),
        "steps beyond 32 bits": _changed("max_iter: 3", "max_iter: 2147483648", SOLVER),
        "no policy of Caffe's": _changed('"multistep"', '"../../multistep"', SOLVER),
        "policy of 3 MB": _changed("multistep", _LESS_LONG, SOLVER),
        "type of 3 MB": _changed("Nesterov", _LESS_LONG, SOLVER),
        "iter_size 0": _changed("iter_size: 1", "iter_size: 0", SOLVER),
        "negative test interval": _changed("test_interval: 5", "test_interval: -5", SOLVER),
        "a million test_iter": SOLVER + "test_iter: 1 " * 1_000_000,
        "messages 10,000 deep": SOLVER + "net_param { " * 10_000 + "} " * 10_000,
        "net_param beside net": SOLVER + "net_param { layer { } }",
    }
