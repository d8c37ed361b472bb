"""ONNX files: a graph of operators, in the messages of ONNX's onnx.proto (IR version 8) that we write."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from samovar.core.errors import InputError
from samovar.formats.message_table import Message, MessageTable

Dimension: TypeAlias = int | str  # a name stands for a size that is free
Attribute: TypeAlias = int | float | str | Sequence[int]

OPERATOR_SET = 17  # its operators are known to runtimes since 2022
_IR_VERSION = 8
_MAX_BYTES = (1 << 31) - 1  # protobuf's own limit
_FLOAT, _INT64 = 1, 7  # TensorProto.DataType

_MESSAGES = MessageTable(
    "onnx",
    """
message AttributeProto: enum AttributeType UNDEFINED=0 FLOAT=1 INT=2 STRING=3 TENSOR=4 GRAPH=5 FLOATS=6 INTS=7 \
    STRINGS=8
  1 name string; 20 type AttributeType; 2 f float; 3 i int64; 4 s bytes; 8 ints int64*
message NodeProto: 1 input string*; 2 output string*; 3 name string; 4 op_type string; 5 attribute AttributeProto*
message TensorProto: 1 dims int64*; 2 data_type int32; 8 name string; 9 raw_data bytes
message Dimension: 1 dim_value int64; 2 dim_param string
message TensorShapeProto: 1 dim Dimension*
message TensorType: 1 elem_type int32; 2 shape TensorShapeProto
message TypeProto: 1 tensor_type TensorType
message ValueInfoProto: 1 name string; 2 type TypeProto
message GraphProto: 1 node NodeProto*; 2 name string; 5 initializer TensorProto*; 11 input ValueInfoProto*
  12 output ValueInfoProto*
message OperatorSetIdProto: 1 domain string; 2 version int64
message ModelProto: 1 ir_version int64; 2 producer_name string; 7 graph GraphProto; 8 opset_import OperatorSetIdProto*
""",
)


class OnnxGraph:
    """A graph under construction; nodes must be added in an order in which their inputs exist."""

    def __init__(self, name: str) -> None:
        self._model = _MESSAGES.message_class("ModelProto")(ir_version=_IR_VERSION, producer_name="samovar")
        self._model.opset_import.add(domain="", version=OPERATOR_SET)
        self._graph: Message = self._model.graph
        self._graph.name = name or "net"
        self._num_bytes = 0

    def add_input(self, name: str, shape: Sequence[Dimension]) -> None:
        _describe(self._graph.input.add(name=name), shape)

    def add_output(self, name: str, shape: Sequence[Dimension]) -> None:
        _describe(self._graph.output.add(name=name), shape)

    def add_constant(self, name: str, array: npt.NDArray[np.float32] | npt.NDArray[np.int64]) -> None:
        """A tensor in the file; raises InputError if the file would pass protobuf's 2 GB."""
        self._num_bytes += array.nbytes
        if self._num_bytes > _MAX_BYTES:
            raise InputError(f"net '{self._graph.name}' has more than 2 GB of weights, the limit of an ONNX file")
        kind = _INT64 if array.dtype == np.int64 else _FLOAT
        raw = np.ascontiguousarray(array, "<i8" if kind == _INT64 else "<f4").tobytes()
        self._graph.initializer.add(name=name, dims=array.shape, data_type=kind, raw_data=raw)

    def add_node(
        self, name: str, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Attribute
    ) -> None:
        node = self._graph.node.add(name=name, op_type=operator, input=inputs, output=outputs)
        for key, value in attributes.items():
            _set(node.attribute.add(name=key), value)

    def encode(self, names: Mapping[str, str]) -> bytes:
        """The file's bytes: the same for the same graph, with other `names` for some values. Ends the construction."""
        for node in self._graph.node:
            node.input[:] = [names.get(value, value) for value in node.input]
            node.output[:] = [names.get(value, value) for value in node.output]
        for output in self._graph.output:
            output.name = names.get(output.name, output.name)
        return bytes(self._model.SerializeToString(deterministic=True))


def _describe(info: Message, shape: Sequence[Dimension]) -> None:
    info.type.tensor_type.elem_type = _FLOAT
    info.type.tensor_type.shape.SetInParent()
    for size in shape:
        dimension = info.type.tensor_type.shape.dim.add()
        if isinstance(size, str):
            dimension.dim_param = size
        else:
            dimension.dim_value = size


def _set(attribute: Message, value: Attribute) -> None:
    kind = attribute.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_name
    if isinstance(value, str):
        attribute.type, attribute.s = kind["STRING"].number, value.encode()
    elif isinstance(value, int):
        attribute.type, attribute.i = kind["INT"].number, value
    elif isinstance(value, float):
        attribute.type, attribute.f = kind["FLOAT"].number, value
    else:
        attribute.type = kind["INTS"].number
        attribute.ints.extend(value)
