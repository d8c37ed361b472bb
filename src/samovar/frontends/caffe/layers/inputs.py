"""Input and MemoryData: blobs that the caller provides."""

from samovar.frontends.caffe.spec import LayerSpec, Shape, checked


def input_shapes(spec: LayerSpec) -> list[Shape]:
    """The shapes of the tops of an Input layer (one given for all of them, or one for each) or a MemoryData layer
    (images (batch_size, channels, height, width) and labels (batch_size,))."""
    if spec.type == "MemoryData":
        return _memory_shapes(spec)
    given = [tuple(shape.dim) for shape in spec.message.input_param.shape]
    if len(given) not in (1, len(spec.tops)):
        raise spec.error(
            f"{len(given)} shapes for {len(spec.tops)} tops; give one shape for all, or one for each top",
            "input_param",
        )
    given = given * len(spec.tops) if len(given) == 1 else given
    return [checked(spec, shape, f"input '{top}'") for shape, top in zip(given, spec.tops, strict=True)]


def _memory_shapes(spec: LayerSpec) -> list[Shape]:
    settings = spec.message.memory_data_param
    shape = (settings.batch_size, settings.channels, settings.height, settings.width)
    if min(shape) < 1:
        raise spec.error("batch_size, channels, height and width must all be given", "memory_data_param")
    if len(spec.tops) != 2:
        raise spec.error(f"number of tops is {len(spec.tops)}; a MemoryData layer has 2 (images, labels)", "top")
    return [checked(spec, shape, f"input '{spec.tops[0]}'"), shape[:1]]
