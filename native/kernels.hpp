// Arithmetic on plain buffers: one pass over memory each, one rounding per operation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace samovar {

// destination[i] = ((sources[0][i] + sources[1][i]) + sources[2][i]) + ...; a source may be the destination.
void reduce(float* destination, const float* const* sources, std::size_t num_sources, std::size_t size);
void reduce(double* destination, const double* const* sources, std::size_t num_sources, std::size_t size);

// Every destination[i] = ((sources[0][i] + sources[1][i]) + ...): each source is read once, each destination
// written once. Destinations may be among the sources.
void combine(float* const* destinations, std::size_t num_destinations, const float* const* sources,
             std::size_t num_sources, std::size_t size);
void combine(double* const* destinations, std::size_t num_destinations, const double* const* sources,
             std::size_t num_sources, std::size_t size);

// Elements [start, start + size) with their own learning rate and weight decay.
struct Run {
  std::uint64_t start;
  std::uint64_t size;
  float rate;
  float decay;
};

// g = gradient_scale * gradient + decay * weight;  h = momentum * h + rate * g;  weight = weight - h
void sgd_momentum(float* weights, const float* gradients, float* history, const Run* runs, std::size_t num_runs,
                  float momentum, float gradient_scale);

}  // namespace samovar
