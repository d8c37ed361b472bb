"""The schema against bytes and numbers that were written down by hand."""

import pytest

from samovar.formats.caffe.schema import message_class, packed_message_class

# (message, field, number on the wire), as BVLC Caffe 1.0 has them.
NUMBERS = [
    ("BlobProto", "shape", 7),
    ("BlobProto", "double_data", 8),
    ("Datum", "encoded", 7),
    ("NetParameter", "layer", 100),
    ("NetParameter", "layers", 2),
    ("SolverParameter", "net", 24),
    ("SolverParameter", "type", 40),
    ("SolverParameter", "weights", 42),
    ("SolverState", "current_step", 4),
    ("LayerParameter", "convolution_param", 106),
    ("LayerParameter", "clip_param", 148),
    ("LayerParameter", "recurrent_param", 146),
    ("V1LayerParameter", "loss_param", 42),
    ("V1LayerParameter", "blob_share_mode", 1002),
    ("V0LayerParameter", "hdf5_output_param", 1001),
    ("ConvolutionParameter", "dilation", 18),
    ("PoolingParameter", "round_mode", 13),
    ("WindowDataParameter", "root_folder", 13),
]


@pytest.mark.parametrize(("message", "field", "number"), NUMBERS)
def test_field_numbers(message: str, field: str, number: int) -> None:
    assert message_class(message).DESCRIPTOR.fields_by_name[field].number == number


def test_datum_has_the_bytes_of_caffe() -> None:
    datum = message_class("Datum")(channels=1, height=2, width=3, data=b"abcdef", label=7)

    assert datum.SerializeToString() == bytes.fromhex("0801 1002 1803 2206 616263646566 2807".replace(" ", ""))


def test_blob_is_packed_on_the_wire() -> None:
    blob = message_class("BlobProto")(data=[1.0, -2.0])
    blob.shape.dim.append(2)

    assert blob.SerializeToString() == bytes.fromhex("2a08 0000803f 000000c0 3a03 0a01 02".replace(" ", ""))


def test_packed_class_reads_the_same_bytes() -> None:
    blob = message_class("BlobProto")(data=[1.0, -2.0], double_data=[3.0])

    packed = packed_message_class("BlobProto").FromString(blob.SerializeToString())

    assert list(packed.data) == [bytes.fromhex("0000803f000000c0")]
    assert packed.SerializeToString() == blob.SerializeToString()


def test_defaults() -> None:
    solver, filler = message_class("SolverParameter")(), message_class("FillerParameter")()

    assert (solver.test_initialization, solver.solver_mode, solver.type) == (True, 1, "SGD")
    assert (solver.average_loss, solver.clip_gradients, solver.random_seed) == (1, -1, -1)
    assert (filler.type, filler.max, filler.sparse) == ("constant", 1, -1)
    assert message_class("NetState")().phase == 1


def test_settings_of_every_layer_type_survive_a_round_trip() -> None:
    layer = message_class("LayerParameter")()
    layer.clip_param.min, layer.clip_param.max = -1, 1
    settings = [field.name for field in layer.DESCRIPTOR.fields if field.name.endswith("_param")]
    for name in settings:
        getattr(layer, name).SetInParent()

    again = message_class("LayerParameter").FromString(layer.SerializeToString())

    assert len(settings) == 49
    assert {field.name for field, _ in again.ListFields()} == set(settings)


def test_unknown_message() -> None:
    with pytest.raises(KeyError, match="NoSuchMessage"):
        message_class("NoSuchMessage")
