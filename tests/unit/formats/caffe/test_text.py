"""Prototxt text: what is read, and where errors say they are."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.core.errors import InputError
from samovar.formats.caffe.text import MAX_TEXT_BYTES, parse_text, read_text

NET = Path("net.prototxt")

BAD = [
    ('layer {\n  nam: "x"\n}', "net.prototxt:2:3: unknown field 'nam' of LayerParameter; did you mean 'name'?"),
    (
        "layer { relu_param { slope: 1 } }",
        "1:22: unknown field 'slope' of ReLUParameter; did you mean 'negative_slope'",
    ),
    ("layer { relu_param { qqq: 1 } }", "allowed are engine, negative_slope"),
    (
        "# first\nlayer { pooling_param { pool: MAXX } }",
        "2:31: unknown value 'MAXX' of PoolingParameter.PoolMethod; allowed are MAX, AVE, STOCHASTIC",
    ),
    ("layer { include { phase: TRIAN } }", "1:26: unknown value 'TRIAN' of Phase; allowed are TRAIN, TEST"),
    ('layer { name: "a"\n  name: "b" }', "2:9: "),
    ('layer { name: "a" ', "1:1"),
    ("input_dim: many", "1:12: Couldn't parse integer: many"),
    ("layer { clip_param { min: 0 } }", "net.prototxt: required field layer[0].clip_param.max is missing"),
    ('name: "no end', "1:7: "),
    ("layer { " * 10_000, "net.prototxt:1: messages nest deeper than 32"),
    ("}", "1:1: "),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_errors_say_where(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_text(text, NET, "NetParameter")

    assert str(caught.value).startswith("net.prototxt:")
    assert message in str(caught.value)


def test_a_long_line_is_not_repeated_in_the_message() -> None:
    with pytest.raises(InputError) as caught:
        parse_text("input_dim: 1 " * 10_000 + "input_dim: x", NET, "NetParameter")

    assert len(str(caught.value)) < 200


def test_places_of_fields() -> None:
    text = """# layer { in a comment }
name: "a { layer } 'net'"  input: ["x",
  "y"]
layer { name: "one" # }
  convolution_param <
    num_output: 4; kernel_size: [3,
      5]
  >
}
layer {
  name: "t" "wo", include: { phase: TEST } include {
    stage: 's{' } }
"""
    parsed = parse_text(text, NET, "NetParameter")

    assert [layer.name for layer in parsed.message.layer] == ["one", "two"]
    layers = parsed.places.fields["layer"]
    assert [place.line for place in layers] == [4, 10]
    assert [place.line for place in parsed.places.fields["input"]] == [2, 3]
    assert layers[0].line_of("convolution_param", "num_output") == 6
    assert [p.line for p in layers[0].fields["convolution_param"][0].fields["kernel_size"]] == [6, 7]
    assert layers[1].fields["include"][1].line_of("stage") == 12
    assert layers[1].line_of("convolution_param", "num_output") == 10


def test_places_of_a_list_of_messages_without_a_colon() -> None:
    text = """layer [ { name: "one" }, {
  name: "two" param [
    { lr_mult: 1 },
    { lr_mult: 2 }] } ]
layer { name: "three" param [ ] }
"""
    parsed = parse_text(text, NET, "NetParameter")

    assert [layer.name for layer in parsed.message.layer] == ["one", "two", "three"]
    layers = parsed.places.fields["layer"]
    assert [place.line for place in layers] == [1, 1, 5]
    assert layers[1].line_of("name") == 2
    assert [place.line for place in layers[1].fields["param"]] == [3, 4]


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.prototxt: no such prototxt file \(looked from "):
        read_text(tmp_path / "nothing.prototxt", "NetParameter")
    with pytest.raises(InputError, match="is not a regular file"):
        read_text(tmp_path, "NetParameter")


def test_a_mark_of_utf8_before_the_text(tmp_path: Path) -> None:
    """Some editors of Windows write it, and Caffe reads such files."""
    path = tmp_path / "net.prototxt"
    path.write_bytes(b'\xef\xbb\xbfname: "a"')
    assert read_text(path, "NetParameter").message.name == "a"


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_bytes(b'name: "a"\nlayer { name: "\xff" }')

    with pytest.raises(InputError, match=r"net\.prototxt:2: byte 0xff is not UTF-8"):
        read_text(path, "NetParameter")


def test_size_cap(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    with path.open("wb") as file:
        file.truncate(MAX_TEXT_BYTES + 1)

    with pytest.raises(InputError, match="has 4194305 bytes; a prototxt may have at most 4194304"):
        read_text(path, "NetParameter")


PIECES = st.sampled_from(
    [
        "layer",
        "name",
        ":",
        "{",
        "}",
        "<",
        ">",
        "[",
        "]",
        '"x"',
        "'",
        '"',
        "1",
        "-1e99",
        "nan",
        "\n",
        "#",
        ";",
        ",",
        "TRAIN",
        "\\",
    ]
)


@given(st.lists(PIECES, max_size=30).map(" ".join) | st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        parsed = parse_text(text, NET, "NetParameter")
    except InputError:
        return
    assert len(parsed.message.layer) == len(parsed.places.fields.get("layer", []))
    assert len(parsed.message.input) == len(parsed.places.fields.get("input", []))
