// The kernels of solvers, sums and elastic steps for the stress program: threads on neighbouring pieces of arrays of
// exactly these sizes, bit by bit against plain loops.
#pragma once

#include <cstdint>

// Returns what was wrong, or nullptr.
const char* stress_updates(std::uint64_t seed);
