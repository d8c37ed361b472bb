// Python's names for the center and the board of center.hpp and center_board.hpp.
#pragma once

#include <nanobind/nanobind.h>

namespace samovar {

void bind_center(nanobind::module_& module);

}  // namespace samovar
