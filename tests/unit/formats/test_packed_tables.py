"""Message classes made at run time: protobuf holds them weakly, so the table must hold them."""

import gc
import weakref

from samovar.formats.message_table import MessageTable

TABLE = """message Outer:
1 inner Inner*
message Inner:
1 number int32"""


def test_classes_live_as_long_as_their_table() -> None:
    """Also one that only a message's field leads to. A class that is collected can crash a thread that parses."""
    table = MessageTable("kept", TABLE)
    inner = table.message_class("Outer")().inner.add(number=1)
    classes = [weakref.ref(table.message_class("Outer")), weakref.ref(type(inner))]
    del inner
    gc.collect()
    assert [found() for found in classes] == [table.message_class("Outer"), table.message_class("Inner")]
