"""A worker's first step loads nothing that takes longer than the step: one that was killed is back the sooner."""

import subprocess
import sys

PROGRAM = """
import sys
import torch
from torch import nn
from samovar.core.buffer import FlatBuffer
from samovar.frontends.caffe.layers import kernels
from samovar.model.model import Model, layout_of
from samovar.model.half import NetOutput

class Net(nn.Linear):
    def forward(self, batch):
        assert kernels.takes(batch["data"][:, :, None, None])
        loss = super().forward(batch["data"]).sum()
        return NetOutput(loss, {})

net = Net(3, 2)
parameters = dict(net.named_parameters())
layout = layout_of(parameters)
weights, gradients = FlatBuffer.zeros(layout), FlatBuffer.zeros(layout)
model = Model(net, parameters, weights, gradients, layout.buckets(None))
ignore = lambda bucket: None
batch = {"data": torch.ones(4, 3)}
hooks = {"before_forward": ignore, "gradient_final": ignore}
model.forward_backward(batch, loss_scale=0.5, first_part=True, last_part=True, **hooks)
assert (gradients.view("bias").numpy() == 2).all(), gradients.array_N
print(*{"sympy", "torch.onnx", "torch._dynamo"} & set(sys.modules))
"""


def test_a_first_step_loads_no_compiler() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("\n", "")
