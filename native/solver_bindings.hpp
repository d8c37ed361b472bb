// Python's names for the update rules of solver_kernels.hpp.
#pragma once

#include <nanobind/nanobind.h>

namespace samovar {

void bind_solver(nanobind::module_& module);

}  // namespace samovar
