// Python's names for the kernels of layers.
#pragma once

#include <nanobind/nanobind.h>

namespace samovar {

void bind_layers(nanobind::module_& module);

}  // namespace samovar
