"""The definition of a net that a solver names."""

from collections.abc import Sequence

from samovar.formats.caffe.text import read_text
from samovar.frontends.caffe.definition import CaffeNetDefinition, net_from_message
from samovar.frontends.caffe.foreign import FOREIGN_FIELDS
from samovar.frontends.caffe.solver_nets import NetSource


def load_source(source: NetSource, level: int | None = None, stages: Sequence[str] = ()) -> CaffeNetDefinition:
    """The net in the state that the solver gives it; `level` and `stages` are the command line's, which go first.

    Raises InputError as `load_net`.
    """
    text = source.text if source.text is not None else read_text(source.path, "NetParameter", FOREIGN_FIELDS)
    return net_from_message(text, source.level if level is None else level, (*source.stages, *stages))
