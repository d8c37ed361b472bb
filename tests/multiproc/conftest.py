"""What tests of whole runs share."""

from tests.multiproc.digits import digits

__all__ = ["digits"]
