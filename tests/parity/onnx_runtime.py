"""An ONNX file run by onnxruntime, a program that shares no code with ours."""

import os
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

Arrays = Mapping[str, npt.NDArray[np.float32]]


def run_onnx(content: bytes, inputs: Arrays) -> dict[str, npt.NDArray[np.float32]]:
    """All outputs by name; the calling test is skipped where there is no onnxruntime."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # it would keep files and threads, and call home
    runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))
