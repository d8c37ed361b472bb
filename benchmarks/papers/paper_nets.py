"""The nets of the papers: the zoo's, counted, with a computation that takes the published time."""

from dataclasses import replace
from pathlib import Path

from samovar.files.net_profile import net_profile
from samovar.report.profile import LayerProfile, Profile, profile_of

ZOO = Path(__file__).parents[2] / "examples" / "zoo"
_SHAPES = {
    "nin": ("data=256,3,224,224",),
    "alexnet": ("data=256,3,227,227",),
    "inception_resnet_v2": ("data=8,3,320,320",),
    "vgg16": ("data=8,3,224,224",),
}


def counted(name: str) -> Profile:
    """A net of the zoo: parameters and multiply-adds of its layers."""
    timed, *_ = net_profile(ZOO / name / "train_val.prototxt", False, None, None, False, _SHAPES.get(name, ()))
    return profile_of(timed)


def taking(profile: Profile, batch_size: int, step_s: float) -> Profile:
    """The same layers for that batch, whose forward and backward passes take `step_s`, by their multiply-adds."""
    total = sum(layer.multiply_adds for layer in profile.layers)
    return Profile(
        profile.net,
        batch_size,
        tuple(
            replace(
                layer,
                forward_s=step_s / 3 * layer.multiply_adds / total,
                backward_s=step_s * 2 / 3 * layer.multiply_adds / total,
            )
            for layer in profile.layers
        ),
    )


def of_size(name: str, num_bytes: float, batch_size: int, step_s: float, num_layers: int = 20) -> Profile:
    """A net of which only the size is known: equal layers."""
    layer = LayerProfile("layer", "", round(num_bytes / 4 / num_layers), 1, 0)
    layers = tuple(replace(layer, name=f"layer {index}") for index in range(num_layers))
    return taking(Profile(name, batch_size, layers), batch_size, step_s)
