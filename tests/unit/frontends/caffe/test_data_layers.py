"""HDF5Data, ImageData and MemoryData as a prototxt writes them, and nets for a state asked for."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from samovar.core.errors import InputError
from samovar.data.config import Hdf5DataConfig, ImageDataConfig, TransformConfig, WindowDataConfig
from samovar.formats.caffe.text import TextMessage, parse_text
from samovar.frontends.caffe.definition import CaffeNetDefinition, load_net, net_from_message
from samovar.frontends.caffe.layers.ends import HDF5Output
from samovar.frontends.caffe.net import CaffeNet, build_net

Definition = Callable[[str], CaffeNetDefinition]
BuildNet = Callable[..., CaffeNet]


def test_what_the_layers_read(definition_of: Definition, tmp_path: Path) -> None:
    for name in ("rows.txt", "images.txt"):
        (tmp_path / name).touch()
    definition = definition_of(
        """layer { name: "h" type: "HDF5Data" top: "a" top: "b" top: "c"
          hdf5_data_param { source: "rows.txt" batch_size: 3 shuffle: true } }
        layer { name: "i" type: "ImageData" top: "data" top: "label" transform_param { scale: 2 mean_value: 4 }
          image_data_param { source: "images.txt" batch_size: 3 root_folder: "." new_height: 5 new_width: 7 } }
        layer { name: "j" type: "ImageData" top: "x" top: "y" include { phase: TEST }
          image_data_param { source: "images.txt" is_color: false shuffle: true } }"""
    )
    rows = Hdf5DataConfig(tmp_path / "rows.txt", 3, ("a", "b", "c"), shuffled=True, training=True)
    images = ImageDataConfig(
        tmp_path / "images.txt",
        3,
        ("data", "label"),
        TransformConfig(scale=2, mean_values=(4,)),
        training=True,
        root=Path(),
        new_size=(5, 7),
    )
    assert definition.data_layers("TRAIN") == (rows, images)
    last = definition.data_layers("TEST")[2]
    assert last == ImageDataConfig(
        tmp_path / "images.txt", 1, ("x", "y"), TransformConfig(), False, is_color=False, shuffled=True
    )


def test_the_layers_own_phase_decides_over_random_crops(definition_of: Definition, tmp_path: Path) -> None:
    (tmp_path / "images.txt").touch()
    definition = definition_of(
        """layer { name: "i" type: "ImageData" top: "data" top: "label" phase: TEST transform_param { crop_size: 3 }
          image_data_param { source: "images.txt" } }"""
    )
    assert [layer.training for layer in definition.data_layers("TRAIN")] == [False]


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ('type: "HDF5Data" hdf5_data_param { source: "." }', "batch_size is missing or 0"),
        ('type: "HDF5Data" hdf5_data_param { source: "none" batch_size: 1 }', "'none' does not exist"),
        ('type: "ImageData" image_data_param { source: "." batch_size: 0 }', "batch_size is missing or 0"),
        (
            'type: "ImageData" image_data_param { source: "." new_height: 3 }',
            "new_height: 3 and new_width: 0; give both",
        ),
        (
            'type: "ImageData" image_data_param { source: "." mirror: true }',
            "mirror in image_data_param is the old place",
        ),
        ('type: "ImageData" image_data_param { source: "." root_folder: "no" }', "root_folder: 'no' does not exist"),
        (
            'type: "MemoryData" memory_data_param { batch_size: 1 channels: 1 height: 1 width: 1 }',
            r"filled by a program: load the net with samovar\.caffe\.load",
        ),
        (
            'type: "Data" data_param { source: "." batch_size: 1 }',
            r"LEVELDB \(Caffe's default\) is not read while training; .*samovar data leveldb",
        ),
    ],
)
def test_refused_layers(definition_of: Definition, layer: str, message: str) -> None:
    definition = definition_of(f'layer {{ name: "d" top: "data" top: "label" {layer} }}')
    with pytest.raises(InputError, match=rf"net\.prototxt:1: layer 'd'.*{message}"):
        definition.data_layers("TRAIN")


WINDOWS = 'type: "WindowData" window_data_param { source: "." batch_size: 4 %s } transform_param { crop_size: 8 }'


def test_windows(definition_of: Definition, tmp_path: Path) -> None:
    """The scale is the layer's own, and that of transform_param has no effect, as in Caffe."""
    (tmp_path / "windows.txt").touch()
    definition = definition_of(
        """layer { name: "w" type: "WindowData" top: "data" top: "label"
          transform_param { mirror: true crop_size: 227 mean_value: 4
          scale: 3 }
          window_data_param { source: "windows.txt" batch_size: 128 root_folder: "." fg_threshold: 0.6 scale: 0.5
            bg_threshold: 0.4 fg_fraction: 0.5 context_pad: 16 crop_mode: "square"
            cache_images: true } }"""
    )
    assert definition.data_layers("TRAIN") == (
        WindowDataConfig(
            tmp_path / "windows.txt",
            128,
            ("data", "label"),
            TransformConfig(scale=3, mean_values=(4,), crop_size=227, mirror=True),
            training=True,
            root=Path(),
            scale=0.5,
            fg_threshold=pytest.approx(0.6),  # type: ignore[arg-type]
            bg_threshold=pytest.approx(0.4),  # type: ignore[arg-type]
            fg_fraction=0.5,
            context_pad=16,
            is_square=True,
        ),
    )
    assert [text.partition(": layer 'w': ")[2] for text in definition.warnings] == [
        "cache_images has no effect; files that were read stay in the system's cache",
        "scale has no effect on a layer of type WindowData; that of window_data_param has",
    ]


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            WINDOWS.replace("crop_size: 8", "") % "",
            "crop_size is missing or 0; give the size that windows are stretched",
        ),
        (WINDOWS % 'crop_mode: "round"', "crop_mode: 'round'; give one of: warp, square"),
        (WINDOWS % "context_pad: 4", "context_pad: 4 of a crop_size of 8 leaves nothing of the window"),
        (WINDOWS % "fg_fraction: 1.5", "fg_fraction: 1.5; it must be 0 to 1"),
        (WINDOWS % "mirror: true", "mirror in window_data_param is the old place"),
    ],
)
def test_refused_windows(definition_of: Definition, layer: str, message: str) -> None:
    definition = definition_of(f'layer {{ name: "d" top: "data" top: "label" {layer} }}')
    with pytest.raises(InputError, match=rf"net\.prototxt:1: layer 'd'.*{message}"):
        definition.data_layers("TRAIN")


@pytest.mark.parametrize(
    ("kind", "tops", "message"),
    [
        ("ImageData", 'top: "a"', "number of tops is 1; a layer of type ImageData has 2"),
        ("HDF5Data", "", "number of tops is 0; a layer of type HDF5Data has 1"),
        ("MemoryData", 'top: "a" top: "b"', "batch_size, channels, height and width must all be given"),
        ("WindowData", 'top: "a"', "number of tops is 1; a layer of type WindowData has 2"),
        ("Data", 'top: "a"', "the shape of top 'a' is not known"),
    ],
)
def test_refused_tops(net_of: BuildNet, kind: str, tops: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        net_of(f'layer {{ name: "d" type: "{kind}" {tops} }}')


def test_memory_data_is_an_input(definition_of: Definition) -> None:
    definition = definition_of(
        """layer { name: "m" type: "MemoryData" top: "data" top: "label"
          memory_data_param { batch_size: 4 channels: 3 height: 2 width: 5 } }
        layer { name: "l" type: "SoftmaxWithLoss" bottom: "data" bottom: "label" top: "loss"
          softmax_param { axis: 1 } loss_param { ignore_label: 1 } include { phase: TRAIN } }"""
    )
    assert definition.input_shapes("TEST") == {"data": (4, 3, 2, 5), "label": (4,)}
    net = build_net(definition, "TEST", {}, seed=0)
    outputs = net({"data": torch.ones(4, 3, 2, 5), "label": torch.zeros(4)}).scalars
    assert {name: tuple(value.shape) for name, value in outputs.items()} == {"data": (4, 3, 2, 5), "label": (4,)}


@pytest.mark.parametrize(
    ("layers", "size"),
    [
        ('type: "DummyData" dummy_data_param { shape { dim: 6 dim: 2 } }', 6),
        ('type: "DummyData" dummy_data_param { num: 5 channels: 1 height: 1 width: 1 }', 5),
        ('type: "Input" input_param { shape { dim: 7 dim: 1 } }', 7),
        ('type: "Parameter" parameter_param { shape { dim: 3 } }', 1),
    ],
)
def test_batch_size_without_data(definition_of: Definition, layers: str, size: int) -> None:
    definition = definition_of(f'layer {{ name: "d" top: "data" {layers} }}')
    assert definition.own_batch_size("TRAIN") == size
    assert definition.data_layers("TRAIN") == ()


STATES = """state { level: 1 stage: "a" }
layer { name: "one" type: "Silence" include { min_level: 1 stage: "a" } }
layer { name: "two" type: "Silence" include { min_level: 2 stage: "b" } }"""


def test_a_state_asked_for_is_added_to_the_nets_own(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(STATES)
    for level, stages, names in (
        (None, (), ["one"]),
        (0, (), []),
        (2, ("b",), ["one", "two"]),
        (None, ("b",), ["one"]),
    ):
        assert [spec.name for spec in load_net(path, level, stages).in_phase("TRAIN")] == names


def test_a_net_inside_a_solver_keeps_its_lines(tmp_path: Path) -> None:
    text = parse_text(
        'base_lr: 1\nnet_param {\n layer { name: "r"\n type: "Rlu" } }', tmp_path / "s", "SolverParameter"
    )
    inner = TextMessage(text.path, text.message.net_param, text.places.fields["net_param"][0])
    with pytest.raises(InputError, match=r"s:4: layer 'r': unknown layer type 'Rlu'; did you mean 'ReLU'"):
        net_from_message(inner)


OUTPUT = """layer {{ name: "i" type: "Input" top: "a" top: "b" input_param {{ shape {{ dim: 2 dim: 3 }} }} }}
layer {{ name: "w" type: "HDF5Output" bottom: "a" bottom: "b" hdf5_output_param {{ file_name: "{0}" }} }}"""


@pytest.mark.parametrize("name", ["", "../out.h5", "/tmp/out.h5", "link/out.h5"])
def test_nothing_is_written_outside_of_the_folder(net_of: BuildNet, tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/link").symlink_to(tmp_path)
    net = net_of(OUTPUT.format(name))
    [output] = net.layers
    assert isinstance(output, HDF5Output)
    output.keeps = True
    net({"a": torch.ones(2, 3), "b": torch.ones(2, 3)})
    with pytest.raises(InputError, match=r"file_name: .* leads out of .*out; give a name to write inside"):
        output.write(tmp_path / "out")
    assert not list(tmp_path.glob("**/out.h5"))


def test_one_forward_pass_into_a_new_file(net_of: BuildNet, tmp_path: Path) -> None:
    net = net_of(OUTPUT.format("deep/out.h5"))
    [output] = net.layers
    assert isinstance(output, HDF5Output)
    output.keeps = True
    net({"a": torch.ones(2, 3), "b": torch.zeros(2, 3)})
    assert output.write(tmp_path) == tmp_path / "deep/out.h5"
    with pytest.raises(InputError, match=r"deep/out\.h5 exists, and is not replaced"):
        output.write(tmp_path)


def test_a_net_that_is_only_run_writes_nothing(net_of: BuildNet, tmp_path: Path) -> None:
    net = net_of(OUTPUT.format("out.h5"))
    [output] = net.layers
    assert isinstance(output, HDF5Output)
    for _ in range(2):
        net({"a": torch.ones(2, 3), "b": torch.ones(2, 3)})
    assert output.write(tmp_path / "new") is None
    assert not (tmp_path / "new").exists()
