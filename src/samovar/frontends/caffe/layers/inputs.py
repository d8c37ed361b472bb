"""Input: blobs that the caller provides."""

from samovar.frontends.caffe.spec import LayerSpec, Shape, checked


def input_shapes(spec: LayerSpec) -> list[Shape]:
    """The shapes of an Input layer's tops: one given for all of them, or one for each."""
    given = [tuple(shape.dim) for shape in spec.message.input_param.shape]
    if len(given) not in (1, len(spec.tops)):
        raise spec.error(
            f"{len(given)} shapes for {len(spec.tops)} tops; give one shape for all, or one for each top",
            "input_param",
        )
    given = given * len(spec.tops) if len(given) == 1 else given
    return [checked(spec, shape, f"input '{top}'") for shape, top in zip(given, spec.tops, strict=True)]
