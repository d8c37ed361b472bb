// The lossy forms for the stress program: messages of exactly their size, from several threads, with values of every
// magnitude, and those that are not finite.
#pragma once

#include <cstdint>

// Returns what was wrong, or nullptr.
const char* stress_codecs(std::uint64_t seed);
