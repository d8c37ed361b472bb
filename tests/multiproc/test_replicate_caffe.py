"""`samovar.replicate` on a Caffe net in a script of the user's own."""

import json
from pathlib import Path

import pytest
import torch

import samovar
from tests.multiproc.script_run import run_script

NET = """
name: "small"
layer { name: "in" type: "Input" top: "data" top: "label" input_param { shape { dim: 4 dim: 1 dim: 6 dim: 6 }
  shape { dim: 4 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3
  weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" param { lr_mult: 1 } param { lr_mult: 2 }
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
TRAIN = """
import json, torch, samovar

def batches(of_rank):
    generator = torch.Generator().manual_seed(of_rank)
    for _ in range(3):
        yield torch.randn(4, 1, 6, 6, generator=generator), torch.randint(0, 3, (4,), generator=generator)

def train(net, batches, replicate=True):
    optimizer = torch.optim.SGD(net.parameter_groups(lr=0.1), lr=0.1, momentum=0.9)
    replica = samovar.replicate(net, optimizer) if replicate else None
    for images, labels in batches:
        optimizer.zero_grad()
        loss = net(images, labels)["loss"]
        replica.backward(loss) if replica else loss.backward()
        (replica or optimizer).step()
    return torch.cat([value.flatten() for value in net.state_dict().values()]).tolist()

"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_ranks_train_as_one_process_on_all_the_data(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    script = TRAIN + "net = samovar.caffe.load('net.prototxt', phase='TRAIN', seed=rank)\n"
    script += "print(json.dumps(train(net, batches(rank))))\n"
    ended = run_script(tmp_path, script, 2)
    assert ended.return_code == 0, ended.errors
    # What ranks say alike is shown once: both hold the same bits.
    (line,) = ended.output.splitlines()
    alone: dict[str, object] = {}
    exec(TRAIN, alone)
    parts = zip(alone["batches"](0), alone["batches"](1), strict=True)  # type: ignore[operator]
    whole = [tuple(map(torch.cat, zip(*both, strict=True))) for both in parts]
    net = samovar.caffe.load(tmp_path / "net.prototxt", phase="TRAIN", seed=0)
    expected = alone["train"](net, whole, replicate=False)  # type: ignore[operator]
    torch.testing.assert_close(torch.tensor(json.loads(line.split(" ", 1)[1])), torch.tensor(expected))
