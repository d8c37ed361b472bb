#include "kernels.hpp"

#include <algorithm>

// The vector width is chosen when the library is loaded; additions are element-wise, so bits do not change.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(SAMOVAR_SANITIZE)
#define SAMOVAR_VECTORIZED __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define SAMOVAR_VECTORIZED
#endif

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
void reduce_blocks(Number* destination, const Number* const* sources, std::size_t num_sources, std::size_t size) {
  if (num_sources == 1) {
    if (destination != sources[0]) std::copy_n(sources[0], size, destination);
    return;
  }
  if (num_sources == 2) return add(destination, sources[0], sources[1], size);
  Number partial[kBlock];
  for (std::size_t start = 0; start < size; start += kBlock) {
    const std::size_t count = std::min(kBlock, size - start);
    add(partial, sources[0] + start, sources[1] + start, count);
    for (std::size_t k = 2; k + 1 < num_sources; ++k) add(partial, partial, sources[k] + start, count);
    add(destination + start, partial, sources[num_sources - 1] + start, count);
  }
}

SAMOVAR_VECTORIZED void sgd_run(float* weights, const float* gradients, float* history, std::size_t size, float rate,
                                float decay, float momentum, float gradient_scale) {
  for (std::size_t i = 0; i < size; ++i) {
    const float gradient = gradient_scale * gradients[i] + decay * weights[i];
    history[i] = momentum * history[i] + rate * gradient;
    weights[i] = weights[i] - history[i];
  }
}

}  // namespace

void reduce(float* destination, const float* const* sources, std::size_t num_sources, std::size_t size) {
  reduce_blocks(destination, sources, num_sources, size);
}

void reduce(double* destination, const double* const* sources, std::size_t num_sources, std::size_t size) {
  reduce_blocks(destination, sources, num_sources, size);
}

void sgd_momentum(float* weights, const float* gradients, float* history, const Run* runs, std::size_t num_runs,
                  float momentum, float gradient_scale) {
  for (std::size_t k = 0; k < num_runs; ++k) {
    const Run& run = runs[k];
    sgd_run(weights + run.start, gradients + run.start, history + run.start, run.size, run.rate, run.decay, momentum,
            gradient_scale);
  }
}

}  // namespace samovar
