"""Data or model parallelism for each layer, from the bytes that each would send (FireCaffe, section 3)."""

from dataclasses import dataclass

from samovar.report.profile import LayerProfile, Profile

DATA, MODEL = "data", "model"


@dataclass(frozen=True, slots=True)
class LayerVolume:
    """One layer with weights. |W| bytes of them travel with data parallelism, |D| of outputs with model parallelism."""

    name: str
    type: str
    weight_bytes: int
    data_bytes: float
    advice: str


def volumes(profile: Profile, global_batch: float) -> list[LayerVolume]:
    """For a step of `global_batch` samples of all workers together. |D| grows with it, |W| does not.

    The advice is to send less: data parallelism if |D| >= |W|. Source: Iandola et al. 2016 (FireCaffe), table 1.
    """
    share = global_batch / profile.batch_size
    return [_volume(layer, share * layer.activation_bytes) for layer in profile.layers if layer.num_parameters]


def _volume(layer: LayerProfile, data_bytes: float) -> LayerVolume:
    advice = DATA if data_bytes >= layer.parameter_bytes else MODEL
    return LayerVolume(layer.name, layer.type, layer.parameter_bytes, data_bytes, advice)
