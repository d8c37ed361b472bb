// Python's name for the codecs of codec_kernels.hpp.
#pragma once

#include <nanobind/nanobind.h>

namespace samovar {

void bind_codec(nanobind::module_& module);

}  // namespace samovar
