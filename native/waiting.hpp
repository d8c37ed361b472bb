// Native waits from Python.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "interpreter.hpp"

namespace samovar {

// Waits are cut into slices so that Python's signal handlers run while a rank waits.
inline constexpr std::uint64_t kSliceNs = 50'000'000;

// Not-a-number is no time at all, infinity is 30 years.
inline std::uint64_t nanoseconds(double seconds) {
  return seconds > 0 ? static_cast<std::uint64_t>(std::min(seconds, 1e9) * 1e9) : 0;
}

template <typename Wait>
auto wait_in_slices(Wait wait, double timeout_s) -> decltype(wait(0)) {
  std::uint64_t left = nanoseconds(timeout_s);
  for (;;) {
    const std::uint64_t slice = std::min(left, kSliceNs);
    {
      WithoutInterpreter released;
      if (auto result = wait(slice)) return result;
    }
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
    if (left <= slice) return std::nullopt;
    left -= slice;
  }
}

}  // namespace samovar
