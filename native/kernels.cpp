#include "kernels.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "vectorized.hpp"

namespace samovar {
namespace {

// Small enough that the partial sums of a block stay in the first-level cache.
constexpr std::size_t kBlock = 2048;

SAMOVAR_VECTORIZED void add(float* out, const float* a, const float* b, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) out[i] = a[i] + b[i];
}

SAMOVAR_VECTORIZED void add(double* out, const double* a, const double* b, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) out[i] = a[i] + b[i];
}

template <typename Number>
void sum_block(Number* out, const Number* const* sources, std::size_t num_sources, std::size_t start,
               std::size_t count) {
  if (num_sources == 1) {
    if (out != sources[0] + start) std::copy_n(sources[0] + start, count, out);
    return;
  }
  add(out, sources[0] + start, sources[1] + start, count);
  for (std::size_t k = 2; k < num_sources; ++k) add(out, out, sources[k] + start, count);
}

// Sums go through a block of their own: a destination may be a source that is still to be read.
template <typename Number>
void combine_blocks(Number* const* destinations, std::size_t num_destinations, const Number* const* sources,
                    std::size_t num_sources, std::size_t size) {
  Number sums[kBlock];
  for (std::size_t start = 0; start < size; start += kBlock) {
    const std::size_t count = std::min(kBlock, size - start);
    sum_block(sums, sources, num_sources, start, count);
    for (std::size_t k = 0; k < num_destinations; ++k) std::copy_n(sums, count, destinations[k] + start);
  }
}

SAMOVAR_VECTORIZED void pull(float* weights, const float* center, float* difference, std::size_t size, float rate) {
  for (std::size_t i = 0; i < size; ++i) {
    const float step = rate * (weights[i] - center[i]);
    difference[i] = step;
    weights[i] = weights[i] - step;
  }
}

SAMOVAR_VECTORIZED void settle_and_pull(float* weights, float* center, float* difference, std::size_t size,
                                        float rate) {
  for (std::size_t i = 0; i < size; ++i) {
    const float settled = center[i] + difference[i];
    const float step = rate * (weights[i] - settled);
    center[i] = settled;
    difference[i] = step;
    weights[i] = weights[i] - step;
  }
}

SAMOVAR_VECTORIZED void nesterov(float* weights, float* center, float* velocity, const float* sum, std::size_t size,
                                 float count, float rate, float momentum) {
  for (std::size_t i = 0; i < size; ++i) {
    const float delta = sum[i] / count;
    const float speed = momentum * velocity[i] + delta;
    const float moved = center[i] - rate * (delta + momentum * speed);
    velocity[i] = speed;
    center[i] = moved;
    weights[i] = moved;
  }
}

// Exponents of all ones are infinity and what is no number.
SAMOVAR_VECTORIZED std::uint32_t any_full_exponent(const float* values, std::size_t size) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  std::uint32_t any = 0;
  for (std::size_t i = 0; i < size; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, values + i, sizeof(bits));
    any |= static_cast<std::uint32_t>((bits & kExponent) == kExponent);
  }
  return any;
}

}  // namespace

void combine(float* const* destinations, std::size_t num_destinations, const float* const* sources,
             std::size_t num_sources, std::size_t size) {
  combine_blocks(destinations, num_destinations, sources, num_sources, size);
}

void combine(double* const* destinations, std::size_t num_destinations, const double* const* sources,
             std::size_t num_sources, std::size_t size) {
  combine_blocks(destinations, num_destinations, sources, num_sources, size);
}

void reduce(float* destination, const float* const* sources, std::size_t num_sources, std::size_t size) {
  if (num_sources == 2) return add(destination, sources[0], sources[1], size);
  combine(&destination, 1, sources, num_sources, size);
}

void reduce(double* destination, const double* const* sources, std::size_t num_sources, std::size_t size) {
  if (num_sources == 2) return add(destination, sources[0], sources[1], size);
  combine(&destination, 1, sources, num_sources, size);
}

void elastic_pull(float* weights, const float* center, float* difference, std::size_t size, float rate) {
  pull(weights, center, difference, size, rate);
}

void elastic_exchange(float* weights, float* center, float* difference, std::size_t size, float rate) {
  settle_and_pull(weights, center, difference, size, rate);
}

void outer_step(float* weights, float* center, float* velocity, const float* sum, std::size_t size, float count,
                float rate, float momentum) {
  nesterov(weights, center, velocity, sum, size, count, rate, momentum);
}

bool all_finite(const float* values, std::size_t size) {
  for (std::size_t start = 0; start < size; start += kBlock)
    if (any_full_exponent(values + start, std::min(kBlock, size - start)) != 0) return false;
  return true;
}

}  // namespace samovar
