"""Nets in the formats before 2014."""

from collections.abc import Callable

import pytest

from samovar.core.errors import InputError
from samovar.frontends.caffe.definition import CaffeNetDefinition

Definition = Callable[[str], CaffeNetDefinition]

V1 = """
layers { name: "d" type: DATA top: "data" include { phase: TEST } data_param { source: "s" scale: 0.5 crop_size: 3 } }
layers { name: "c" type: INNER_PRODUCT bottom: "data" top: "y" blobs_lr: 1 blobs_lr: 2 weight_decay: 3 param: "w"
  blob_share_mode: PERMISSIVE inner_product_param { num_output: 4 } loss_weight: 0.5 }
"""
V0 = """
layers { layer { name: "p" type: "padding" pad: 2 } bottom: "data" top: "padded" }
layers { layer { name: "c" type: "conv" num_output: 4 kernelsize: 3 stride: 2 biasterm: false blobs_lr: 1 }
  bottom: "padded" top: "c" }
layers { layer { name: "s" type: "pool" pool: AVE kernelsize: 2 pad: 1 } bottom: "c" top: "s" }
"""


def test_the_second_format(definition_of: Definition) -> None:
    definition = definition_of(V1)

    data, inner = (spec.message for spec in definition.layers)
    assert (data.type, data.transform_param.scale, data.transform_param.crop_size) == ("Data", 0.5, 3)
    assert not data.data_param.HasField("scale")
    assert not definition.in_phase("TRAIN")[0].message.include
    assert (inner.type, inner.inner_product_param.num_output, list(inner.loss_weight)) == ("InnerProduct", 4, [0.5])
    assert [(p.name, p.share_mode, p.lr_mult, p.decay_mult) for p in inner.param] == [("w", 1, 1, 3), ("", 0, 2, 1)]
    assert definition.layers[1].place.line == 3
    assert any("net.prototxt:2: 'layers' is the format before 2014" in text for text in definition.warnings)


def test_the_first_format(definition_of: Definition) -> None:
    convolution, pooling = (spec.message for spec in definition_of(V0).layers)

    settings = convolution.convolution_param
    assert list(convolution.bottom) == ["data"]
    assert (list(settings.pad), list(settings.kernel_size), list(settings.stride)) == ([2], [3], [2])
    assert (settings.num_output, settings.bias_term, convolution.param[0].lr_mult) == (4, False, 1)
    assert (pooling.pooling_param.pool, pooling.pooling_param.kernel_size, pooling.pooling_param.pad) == (1, 2, 1)


REFUSED = [
    (V0.replace('"conv"', '"relu"'), r"net.prototxt:3: layer 'c' of type relu reads 'padded' of a padding layer"),
    (V0.replace('bottom: "data" top: "padded"', 'bottom: "data"'), "net.prototxt:2: a padding layer has one bottom"),
    (V0.replace('"pool" ', '"pol" '), "net.prototxt:5: layer 's': unknown layer type 'pol'"),
    (V1.replace("INNER_PRODUCT", "NONE"), "net.prototxt:3: layer 'c': unknown layer type ''"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_refused(definition_of: Definition, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        definition_of(text)
