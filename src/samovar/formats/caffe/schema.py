"""Caffe's protobuf schema: the tables of schema_nets.py and schema_layers.py as message classes."""

from samovar.formats.caffe.schema_layers import LAYERS, OLD_LAYERS
from samovar.formats.caffe.schema_nets import NETS
from samovar.formats.packed import Message, MessageClass, MessageTable

__all__ = ["PACKAGE", "Message", "MessageClass", "message_class", "packed_message_class"]

PACKAGE = "caffe"


def message_class(name: str) -> MessageClass:
    """The class of Caffe's message `name` ("NetParameter"); KeyError for a name that Caffe does not have."""
    return _MESSAGES.message_class(name)


def packed_message_class(name: str) -> MessageClass:
    """As `message_class`, but packed float and double fields are lists of raw little-endian byte runs.

    On the wire both are the same. It reads and writes arrays without a Python object for each number.
    """
    return _PACKED_MESSAGES.message_class(name)


_TABLE = NETS + LAYERS + OLD_LAYERS
_MESSAGES = MessageTable(PACKAGE, _TABLE)
_PACKED_MESSAGES = MessageTable(PACKAGE, _TABLE, packed_as_bytes=True)
