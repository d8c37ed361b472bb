// The kernels of layers for the stress program: random sizes on arrays of exactly these sizes, against plain loops.
#pragma once

#include <cstdint>

// Returns what was wrong, or nullptr.
const char* stress_layers(std::uint64_t seed);
