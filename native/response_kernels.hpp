// Local response normalization: y = x * (k + factor * S)^-beta, S a sum of squares over `size` neighbours (an odd
// number; those beyond the edge count as 0). Backward computes S again instead of reading it from memory:
//   dx = dy * s^-beta - slope * x * (sum over the same neighbours of dy * x * s^(-beta - 1)),  s = k + factor * S
// Each reads and writes every array once.
#pragma once

#include <cstddef>

namespace samovar::layers {

// Those whose power is made of square roots.
enum class Beta { kThreeQuarters, kHalf, kOne };

struct Response {
  std::size_t size;
  float factor;
  float slope;  // 2 * factor * beta
  float k;
  Beta beta;
  bool rectifies;  // x is max(given, 0), and dx is the gradient of what is given
};

// Neighbours along the middle axis of (outer, channels, inner).
void respond_across(const float* x, float* y, std::size_t outer, std::size_t channels, std::size_t inner,
                    const Response& response, int threads);
void respond_across_backward(const float* x, const float* dy, float* dx, std::size_t outer, std::size_t channels,
                             std::size_t inner, const Response& response, int threads);

// Neighbours in a square of the two middle axes of (outer, height, width, inner).
void respond_within(const float* x, float* y, std::size_t outer, std::size_t height, std::size_t width,
                    std::size_t inner, const Response& response, int threads);
void respond_within_backward(const float* x, const float* dy, float* dx, std::size_t outer, std::size_t height,
                             std::size_t width, std::size_t inner, const Response& response, int threads);

}  // namespace samovar::layers
