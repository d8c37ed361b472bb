// The stress of the center for sanitizers; part of stress.cpp's program.
#pragma once

#include <cstdint>

// One pass over the center, its thread and its board; what was wrong, or nullptr.
const char* stress_center(std::uint64_t seed);
