"""VGG's configurations D (16 layers) and E (19): convolutions of 3 x 3, then three inner products."""

from collections.abc import Callable

from generator.imagenet import DATA_SAYS, NUM_CLASSES, databases, momentum, solver, steps
from generator.model import Model
from generator.net import XAVIER, Net

_TEST_BATCH_SIZE = 25
_CHANNELS = (64, 128, 256, 512, 512)


def _body(num_convolutions: tuple[int, ...]) -> Callable[[Net, str], str]:
    def body(net: Net, data: str) -> str:
        x = data
        for stage, (count, num_output) in enumerate(zip(num_convolutions, _CHANNELS, strict=True), start=1):
            for number in range(1, count + 1):
                x = net.convolution(f"conv{stage}_{number}", x, num_output, 3, pad=1, weight=XAVIER)
                x = net.relu(f"relu{stage}_{number}", x)
            x = net.pool(f"pool{stage}", x, "MAX", 2, 2)
        for number in (6, 7):
            x = net.inner_product(f"fc{number}", x, 4096, weight=XAVIER)
            x = net.relu(f"relu{number}", x)
            x = net.dropout(f"drop{number}", x, 0.5)
        return net.inner_product("fc8", x, NUM_CLASSES, weight=XAVIER)

    return body


def _model(name: str, about: str, num_convolutions: tuple[int, ...]) -> Model:
    mean = {"mean_value": [103.939, 116.779, 123.68]}  # blue, green, red
    train, test = databases(224, mean, 32, _TEST_BATCH_SIZE)
    return Model(
        name=name,
        about=(
            f"{about}\n"
            "Simonyan, Zisserman, Very deep convolutional networks for large-scale image recognition, 2015.\n"
            "Weights start as Glorot and Bengio (2010) say, which the paper names in place of starting from a\n"
            f"shallower net.\n{DATA_SAYS}"
        ),
        image_shape=(3, 224, 224),
        train=train,
        test=test,
        body=_body(num_convolutions),
        solvers={
            "solver": (
                "74 epochs in batches of 256. The paper divides the rate by 10 three times, when validation stops\n"
                "improving; here at regular steps.",
                solver(
                    name,
                    max_iter=370_000,
                    test_batch_size=_TEST_BATCH_SIZE,
                    rate=steps(0.01, 100_000),
                    rule=[("iter_size", 8, "x 32 = batches of 256"), *momentum(0.0005)],
                ),
            )
        },
    )


VGG16 = _model(
    "vgg16", "VGG, configuration D: 13 convolutions, three inner products, 138,357,544 parameters.", (2, 2, 3, 3, 3)
)
VGG19 = _model(
    "vgg19", "VGG, configuration E: 16 convolutions, three inner products, 143,667,240 parameters.", (2, 2, 4, 4, 4)
)
