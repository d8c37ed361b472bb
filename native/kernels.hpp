// Arithmetic on plain buffers: one pass over memory each, one rounding per operation.
#pragma once

#include <cstddef>

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

// One side of an elastic exchange: d = rate * (x - c);  x = x - d. Conserves x + d.
void elastic_pull(float* weights, const float* center, float* difference, std::size_t size, float rate);

// The end of one exchange and the beginning of the next: c = c + difference;  then as elastic_pull.
void elastic_exchange(float* weights, float* center, float* difference, std::size_t size, float rate);

// Nesterov's step by the mean of `count` workers' differences from the center, whose sum is given:
//   delta = sum / count;  v = momentum * v + delta;  center = center - rate * (delta + momentum * v);
//   weights = center
// `weights` may be `sum`.
void outer_step(float* weights, float* center, float* velocity, const float* sum, std::size_t size, float count,
                float rate, float momentum);

// Whether all of them are numbers below infinity.
bool all_finite(const float* values, std::size_t size);

}  // namespace samovar
