"""A worker's computation, from a net's profile: what buckets divide, and how long each part takes.

And data or model parallelism for each layer, from the bytes that each would send (FireCaffe, section 3).
"""

from dataclasses import dataclass, replace

from samovar.core.errors import InputError
from samovar.predict.cluster import Cluster, WorkerSpec
from samovar.report.profile import LayerProfile, Profile, flops_of, gradients_of

# How often a layer without products goes over its output, forward and backward.
_FORWARD_PASSES, _BACKWARD_PASSES = 2, 3


@dataclass(frozen=True, slots=True)
class Segment:
    """A layer with parameters, and the layers without any up to the next: the least that buckets divide.

    Seconds forward; seconds backward until its gradient is final, `fresh_s` of them because its memory is fresh.
    """

    name: str
    num_parameters: int
    forward_s: float
    backward_s: float
    fresh_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """A worker's computation in a step with `batch_size` samples: segments in forward order.

    `before_s` is forward work before the first segment, `after_s` backward work after the last gradient.
    `num_unlearned` parameters travel to a center, too.
    """

    batch_size: float
    segments: tuple[Segment, ...]
    before_s: float
    after_s: float
    update_s: float
    num_unlearned: int = 0

    @property
    def forward_s(self) -> float:
        return self.before_s + sum(segment.forward_s for segment in self.segments)

    @property
    def backward_s(self) -> float:
        return self.after_s + sum(segment.backward_s for segment in self.segments)

    @property
    def step_s(self) -> float:
        """Of a worker alone."""
        return self.forward_s + self.backward_s + self.update_s

    def alone_s(self, cluster: Cluster) -> float:
        """The mean step of one worker that never exchanges."""
        jitter_s = cluster.worker.jitter / 2 * (self.forward_s + self.backward_s)
        return cluster.machine.compute_s(0, self.step_s + jitter_s)

    @property
    def num_parameters(self) -> int:
        return sum(segment.num_parameters for segment in self.segments)


_UPDATE_PASSES = 5  # weights, gradients and momentum read; weights and momentum written


def work_of(profile: Profile, worker: WorkerSpec, batch_size: float, slower: float = 1.0) -> Work:
    """The computation of one worker of a cluster with that many samples.

    A worker with a `speed` s takes 2 multiply_adds / s forward, and twice that backward. The first layer with products
    takes it once backward, and frozen layers before it not at all. Layers without products move their outputs through
    memory. A worker without a speed has the profile's seconds. All grow with the batch, except the time that fresh
    memory of gradients takes.

    An update takes the profile's seconds, or goes over 5 times the parameters' bytes. The profile's seconds are those
    of a worker alone. With others at work, moving bytes takes `slower` times as long: a layer's outputs, 2 times
    forward and 3 backward, its parameters, and all of an update. Raises InputError if seconds are missing.
    """
    times, is_timed = _times(profile, worker, slower), _speed(profile, worker) is None
    share = batch_size / profile.batch_size
    segments: list[Segment] = []
    before_s = after_s = 0.0
    for layer, (of_forward_s, of_backward_s) in zip(profile.layers, times, strict=True):
        fresh_s = min(layer.fresh_s, of_backward_s) if is_timed else 0.0
        forward_s, backward_s = share * of_forward_s, share * (of_backward_s - fresh_s) + fresh_s
        if layer.num_parameters:
            segments.append(Segment(layer.name, layer.num_parameters, forward_s, backward_s, fresh_s))
        elif segments:
            last = segments[-1]
            segments[-1] = replace(last, forward_s=last.forward_s + forward_s, backward_s=last.backward_s + backward_s)
        else:
            before_s, after_s = before_s + forward_s, after_s + backward_s
    update_s = slower * _UPDATE_PASSES * profile.parameter_bytes / worker.memory_alone
    if profile.update_s is not None and is_timed:
        update_s = slower * profile.update_s
    num_unlearned = profile.net_parameters - profile.num_parameters
    return Work(batch_size, tuple(segments), before_s, after_s, update_s, num_unlearned)


def _speed(profile: Profile, worker: WorkerSpec) -> float | None:
    """None if the profile's seconds count."""
    return worker.speed if profile.flops else None


def _times(profile: Profile, worker: WorkerSpec, slower: float) -> list[tuple[float, float]]:
    speed = _speed(profile, worker)
    if speed is None:
        if not profile.is_measured and worker.speed is not None:
            raise InputError(f"{profile.net}: a layer lacks its seconds, and none has multiply_adds; give either")
        if not profile.is_measured:
            raise InputError(
                f"{profile.net}: its layers were counted, not timed, and the cluster's [worker] has no speed; give "
                'speed = "4 Tflop/s", say, or a profile with seconds'
            )
        return [_beside_others(layer, worker, slower) for layer in profile.layers]
    found, layers = [], profile.layers
    made = gradients_of(layers)
    for layer, (forward, backward), (has_learned, _) in zip(layers, flops_of(layers), made, strict=True):
        moved_s = slower * layer.activation_bytes / worker.memory_alone
        times = (forward / speed, backward / speed)
        passes = _BACKWARD_PASSES if has_learned or layer.num_parameters else 0
        found.append(times if forward else (_FORWARD_PASSES * moved_s, passes * moved_s))
    return found


def _beside_others(layer: LayerProfile, worker: WorkerSpec, slower: float) -> tuple[float, float]:
    """Its seconds forward and backward, of which those that move bytes become longer."""
    alone, outputs = worker.memory_alone, layer.activation_bytes + layer.behind_bytes
    passes = ((layer.forward_s or 0.0, _FORWARD_PASSES, 1), (layer.backward_s or 0.0, _BACKWARD_PASSES, 2))
    forward_s, backward_s = (
        seconds + (slower - 1.0) * min(seconds, (over * outputs + often * layer.parameter_bytes) / alone)
        for seconds, over, often in passes
    )
    return forward_s, backward_s


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
