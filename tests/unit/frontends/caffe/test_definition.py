"""Which layers a phase has, what its Data layer reads, and what is refused or warned about."""

from collections.abc import Callable
from pathlib import Path

import pytest

from samovar.core.errors import InputError
from samovar.data.config import DataConfig, TransformConfig
from samovar.frontends.caffe.definition import CaffeNetDefinition

Definition = Callable[[str], CaffeNetDefinition]

RULES = [
    ("", True, True),
    ("include { phase: TRAIN }", True, False),
    ("exclude { phase: TRAIN }", False, True),
    ("include { phase: TRAIN } include { phase: TEST }", True, True),
    ("include { min_level: 2 }", False, False),
    ("include { min_level: 1 max_level: 1 }", True, True),
    ("include { max_level: 0 }", False, False),
    ('include { stage: "a" }', True, True),
    ('include { stage: "a" stage: "c" }', False, False),
    ('include { stage: "a" not_stage: "b" }', False, False),
    ('include { phase: TEST not_stage: "c" }', False, True),
    ('exclude { stage: "b" }', False, False),
]


@pytest.mark.parametrize(("rules", "in_train", "in_test"), RULES)
def test_phases_levels_and_stages(definition_of: Definition, rules: str, in_train: bool, in_test: bool) -> None:
    definition = definition_of(f'state {{ level: 1 stage: "a" stage: "b" }} layer {{ name: "x" type: "ReLU" {rules} }}')

    assert len(definition.in_phase("TRAIN")) == in_train
    assert len(definition.in_phase("TEST")) == in_test


def test_old_inputs_become_an_input_layer(definition_of: Definition) -> None:
    by_dims = definition_of('input: "a" input_dim: 2 input_dim: 1 input_dim: 4 input_dim: 5')
    by_shape = definition_of('input: "a" input: "b" input_shape { dim: 2 dim: 3 } input_shape { dim: 7 }')

    assert [list(spec.message.input_param.shape[0].dim) for spec in by_dims.layers] == [[2, 1, 4, 5]]
    assert [(spec.name, spec.tops) for spec in by_shape.layers] == [("input", ("a", "b"))]
    with pytest.raises(InputError, match=r"net\.prototxt:2: 1 inputs with 0 input_shape and 3 input_dim"):
        definition_of('\ninput: "a" input_dim: 2 input_dim: 1 input_dim: 4')


DATA = 'layer {{ name: "d" type: "Data" top: "data" top: "label"\n {0} }}'


def test_data_layer(definition_of: Definition, tmp_path: Path) -> None:
    (tmp_path / "images_lmdb").mkdir()
    (tmp_path / "mean.binaryproto").touch()
    train = DATA.format(
        'include { phase: TRAIN } data_param { source: "images_lmdb" batch_size: 64 backend: LMDB } '
        "transform_param { scale: 0.5 crop_size: 3 mirror: true mean_value: 1 mean_value: 2 }"
    )
    test = DATA.format(
        'include { phase: TEST } data_param { source: "images_lmdb" batch_size: 10 backend: LMDB } '
        'transform_param { mean_file: "mean.binaryproto" }'
    )

    definition = definition_of(train + test)

    assert definition.data_layers("TRAIN") == (
        DataConfig(
            tmp_path / "images_lmdb",
            64,
            ("data", "label"),
            TransformConfig(scale=0.5, mean_values=(1, 2), crop_size=3, mirror=True),
            training=True,
        ),
    )
    [found] = definition.data_layers("TEST")
    assert isinstance(found, DataConfig)
    assert (found.batch_size, found.training) == (10, False)
    assert found.transform == TransformConfig(mean_file=tmp_path / "mean.binaryproto")


def test_source_is_looked_for_in_the_working_folder_first(
    definition_of: Definition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = tmp_path / "work"
    (working / "images").mkdir(parents=True)
    (tmp_path / "images").mkdir()
    definition = definition_of(DATA.format('data_param { source: "images" batch_size: 1 backend: LMDB }'))

    assert definition.data_layers("TRAIN")[0].source == tmp_path / "images"
    monkeypatch.chdir(working)
    assert definition.data_layers("TRAIN")[0].source == Path("images")


BAD_DATA = [
    ('data_param { source: "." batch_size: 1 }', "net.prototxt:2: layer 'd': backend: LEVELDB .* write backend: LMDB"),
    ('data_param { source: "." backend: LMDB }', "batch_size is missing"),
    ("data_param { batch_size: 1 backend: LMDB }", "source is empty"),
    (
        'data_param { source: "none" batch_size: 1 backend: LMDB }',
        "'none' does not exist; looked for .*/none and .*/none",
    ),
    ('data_param { source: "/none" batch_size: 1 backend: LMDB }', "'/none' does not exist; looked for /none$"),
    ('data_param { source: "." batch_size: 1 backend: LMDB scale: 2 }', "write it in transform_param"),
    (
        'data_param { source: "." batch_size: 1 backend: LMDB } transform_param { mean_file: "." mean_value: 1 }',
        "mean_file and mean_value are both given",
    ),
    (
        'data_param { source: "." batch_size: 1 backend: LMDB } transform_param { mean_file: "no_mean" }',
        "mean_file: 'no_mean' does not exist",
    ),
    ('data_param { source: "." batch_size: 1 backend: LMDB } transform_param { scale: inf }', "finite"),
    (
        'data_param { source: "." batch_size: 1 backend: LMDB } transform_param { force_gray: true force_color: true }',
        "force_color and force_gray are both given",
    ),
]


@pytest.mark.parametrize(("settings", "message"), BAD_DATA)
def test_refused_data_layers(definition_of: Definition, settings: str, message: str) -> None:
    definition = definition_of(DATA.format(settings))

    with pytest.raises(InputError, match=message):
        definition.data_layers("TRAIN")


def test_a_folder_is_named_once(definition_of: Definition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    definition = definition_of(DATA.format('data_param { source: "none" batch_size: 1 backend: LMDB }'))
    with pytest.raises(InputError, match=f"looked for {tmp_path}/none$"):
        definition.data_layers("TRAIN")


def test_no_data_layer_and_two(definition_of: Definition) -> None:
    one = DATA.format("include { phase: TRAIN }")

    assert definition_of(one).data_layers("TEST") == ()
    with pytest.raises(InputError, match=r"net.prototxt:1: layer 'd': batch_size is missing"):
        definition_of(one).data_layers("TRAIN")


BAD = [
    ('name: "empty"', "net.prototxt: has no layers"),
    ('net: "a.prototxt"\nbase_lr: 0.1', r"net.prototxt: is a solver .*, not a net; give the net that it names"),
    (
        'layer { name: "x" type: "ReLU" }\nlayers { name: "y" type: RELU }',
        "net.prototxt:2: .*excludes 'layer'",
    ),
    (
        'layer {\n name: "x"\n type: "Relu" }',
        "net.prototxt:3: layer 'x': unknown layer type 'Relu'; did you mean 'ReLU'",
    ),
    (
        'layer { name: "x" type: "LSTMUnit" }',
        "Caffe's layer type LSTMUnit is a part of Caffe's own LSTM; write a layer of type LSTM",
    ),
    (
        'layer { name: "x" type: "Python" }',
        r"layer type Python runs code .* samovar.caffe.register_layer\('NAME', ...\)",
    ),
    (
        'layer { name: "x" type: "Python" python_param { module: "os" layer: "PairLoss" } }',
        r"Samovar never does\. Write the layer as a torch module, .*register_layer\('PairLoss', ...\)",
    ),
    ('layer { name: "x" type: "Python" python_param { layer: "ReLU" } }', "layer type Python runs code"),
    (r'layer { name: "x" type: "Python" python_param { layer: "a\nb" } }', r"register_layer\('NAME', ...\)"),
    ('layer { name: "x" type: "ReLU" include { } exclude { } }', "both include and exclude"),
    ('layer { name: "x" type: "ReLU" blobs { } }', "blobs in a prototxt"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_refused_nets(definition_of: Definition, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        definition_of(text)


def test_warnings(definition_of: Definition, tmp_path: Path) -> None:
    definition = definition_of(
        """debug_info: true
layer { name: "r" type: "ReLU"
  pooling_param { kernel_size: 2 } }
layer { name: "d" type: "Data" data_param { rand_skip: 3 }
  transform_param { force_gray: true } }
layer { name: "i" type: "ImageData" image_data_param { rand_skip: 3 }
  transform_param { force_gray: true } }
"""
    )

    path = tmp_path / "net.prototxt"
    assert definition.warnings == (
        f"{path}:1: debug_info of a net is for `samovar test` and `samovar caffe test`; training follows the solver's, "
        "as in Caffe",
        f"{path}:3: layer 'r': pooling_param has no effect on a layer of type ReLU",
        f"{path}:4: layer 'd': rand_skip has no effect; the order of samples follows from the seed",
        f"{path}:6: layer 'i': rand_skip has no effect; the order of samples follows from the seed",
        f"{path}:7: layer 'i': force_gray has no effect on a layer of type ImageData; is_color decides",
    )


def test_fields_of_others_that_change_no_result_are_skipped(definition_of: Definition, tmp_path: Path) -> None:
    definition = definition_of(
        """default_forward_type: FLOAT16
layer { name: "d" type: "Data" top: "x" data_param { source: "." backend: LMDB threads: 4
  cache: true } transform_param { use_gpu_transform: true } }
layer { name: "c" type: "Convolution" bottom: "x" top: "y" engine: "MKLDNN"
  convolution_param { num_output: 2 kernel_size: 1 cudnn_convolution_algo_seeker: FINDEX } }
"""
    )

    def of(line: int, name: str, owner: str = "NVCaffe") -> str:
        where = f"{tmp_path}/net.prototxt:{line}: {name}"
        return f"{where} is a field of {owner} that BVLC Caffe does not have; it has no effect here"

    assert definition.warnings == (
        of(1, "default_forward_type"),
        of(2, "threads"),
        of(3, "cache"),
        of(3, "use_gpu_transform"),
        of(4, "engine", "Intel Caffe"),
        of(5, "cudnn_convolution_algo_seeker"),
    )
    assert definition.layers[1].message.convolution_param.num_output == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'layer { name: "b" batch_norm_param { scale_bias: true } }',
            "unknown field 'scale_bias' of BatchNormParameter",
        ),
        ('threads: 1 layer { name: "b" forward_math: FLOAT }', "unknown field 'threads' of NetParameter"),
        (
            "default_forward_math: FLOAT layer { batch_norm_param { scale_bias: true } }",
            "net.prototxt:1: unknown field 'scale_bias' of BatchNormParameter",
        ),
    ],
)
def test_others_are_not(definition_of: Definition, text: str, message: str) -> None:
    """Also not where some field was skipped, which makes the parser tolerate any."""
    with pytest.raises(InputError, match=message):
        definition_of(text)
