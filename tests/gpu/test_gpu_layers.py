"""Each layer of the zoo's nets on a real GPU: from the same bottoms, the tops and the gradients of the CPU."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.layers.base import RandomLayer
from samovar.frontends.caffe.net import CaffeNet, build_net
from samovar.frontends.caffe.wiring import Step
from tests.gpu.gpus import needs_gpu
from tests.parity.zoo import SMALL, random_images

pytestmark = [needs_gpu, pytest.mark.timeout(300)]
BATCH = 4
CLOSE = 1e-3  # relative, of a whole blob
NETS = (*SMALL, "alexnet", "nin", "googlenet", "vgg16", "resnet50", "inception_resnet_v2")


class Compared:
    """Sees each layer of a net, and has that of `twin`, on the GPU, do the same."""

    def __init__(self, twin: CaffeNet) -> None:
        self._twin, self._bottoms = twin, list[torch.Tensor]()
        self.num_layers = 0

    def begin(self, blobs: Mapping[str, torch.Tensor]) -> None:
        del blobs

    def ended(self) -> None:
        pass

    def taken(self, number: int, bottoms: list[torch.Tensor]) -> list[torch.Tensor]:
        del number
        self._bottoms = [bottom.detach().clone() for bottom in bottoms]
        return bottoms

    def given(self, number: int, step: Step, tops: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        if not isinstance(step.layer, RandomLayer):
            theirs, ours = (self._learned(layer, place) for layer, place in self._sides(number, step))
            for one, other in zip(ours, theirs, strict=True):
                distance = float((one.cpu() - other).norm() / other.norm().clamp_min(1e-20))
                assert distance < CLOSE, f"{step.layer.spec.name} ({step.layer.spec.type}): {distance:.1e}"
            self.num_layers += 1
        return tops

    def _sides(self, number: int, step: Step) -> tuple[tuple[torch.nn.Module, str], ...]:
        return (step.layer, "cpu"), (self._twin.steps[number].layer, "cuda")

    def _learned(self, layer: torch.nn.Module, place: str) -> list[torch.Tensor]:
        """Tops, and the gradients of bottoms and parameters for a random gradient of the tops."""
        bottoms = [bottom.to(place) for bottom in self._bottoms]
        learning = [bottom.requires_grad_() for bottom in bottoms if bottom.is_floating_point() and bottom.dim() > 1]
        learning += [parameter for parameter in layer.parameters() if parameter.requires_grad]
        with torch.enable_grad():
            tops = layer.tops(*bottoms)  # type: ignore[operator]
        graphs = [top for top in tops if top.requires_grad]
        torch.manual_seed(1)
        seeds = [torch.randn(top.shape).to(place) for top in graphs]
        gradients = torch.autograd.grad(graphs, learning, seeds, allow_unused=True) if graphs and learning else ()
        return [value.detach() for value in (*tops, *gradients) if value is not None]


@pytest.mark.parametrize("name", NETS)
def test_each_layer_of_a_net_computes_what_it_computes_on_the_cpu(repository_root: Path, name: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    folder = repository_root / "examples" / "zoo" / name
    images = torch.from_numpy(random_images(folder / "deploy.prototxt", BATCH))
    shapes = {"data": tuple(images.shape), "label": (BATCH,)}
    definition = load_net(folder / "train_val.prototxt")
    net, twin = (build_net(definition, "TRAIN", shapes, seed=11) for _ in range(2))
    twin.place(torch.device("cuda"))
    twin.separate()
    watch = Compared(twin)
    net.be_watched(watch)
    with torch.no_grad():
        net({"data": images, "label": torch.arange(BATCH)})
    assert watch.num_layers > 4
