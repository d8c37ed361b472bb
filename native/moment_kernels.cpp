#include "moment_kernels.hpp"

#include <algorithm>
#include <vector>

#include "parallel.hpp"
#include "vectorized.hpp"

namespace samovar::layers {
namespace {

// Sums of the rows: as many as threads may share, and no more, for they are added at the end.
constexpr std::size_t kParts = 32;

SAMOVAR_VECTORIZED void add_rows(const float* __restrict a, const float* __restrict b,
                                 const float* __restrict a_shift, const float* __restrict b_shift,
                                 double* __restrict sums, double* __restrict products, std::size_t rows,
                                 std::size_t channels) {
  for (std::size_t row = 0; row < rows; ++row, a += channels, b += channels)
    for (std::size_t c = 0; c < channels; ++c) {
      const double u = static_cast<double>(a[c]) - a_shift[c], v = static_cast<double>(b[c]) - b_shift[c];
      sums[c] += u;
      products[c] += u * v;
    }
}

SAMOVAR_VECTORIZED void standardize_rows(const float* __restrict x, const float* __restrict mean,
                                         const float* __restrict deviation, float* __restrict y, std::size_t rows,
                                         std::size_t channels) {
  for (std::size_t row = 0; row < rows; ++row, x += channels, y += channels)
    for (std::size_t c = 0; c < channels; ++c) y[c] = (x[c] - mean[c]) / deviation[c];
}

SAMOVAR_VECTORIZED void standardize_rows_backward(const float* __restrict dy, const float* __restrict y,
                                                  const float* __restrict dy_mean,
                                                  const float* __restrict product_mean,
                                                  const float* __restrict deviation, float* __restrict dx,
                                                  std::size_t rows, std::size_t channels) {
  for (std::size_t row = 0; row < rows; ++row, dy += channels, y += channels, dx += channels)
    for (std::size_t c = 0; c < channels; ++c) dx[c] = (dy[c] - dy_mean[c] - y[c] * product_mean[c]) / deviation[c];
}

}  // namespace

void column_moments(const float* a, const float* b, const float* a_shift, const float* b_shift, double* sums,
                    double* products, std::size_t rows, std::size_t channels, int threads) {
  std::vector<double> parts(2 * kParts * channels);
  parallel(kParts, rows * channels, threads, [&](std::size_t begin, std::size_t end) {
    for (std::size_t part = begin; part < end; ++part) {
      const std::size_t first = rows * part / kParts, last = rows * (part + 1) / kParts;
      double* own = parts.data() + 2 * part * channels;
      add_rows(a + first * channels, b + first * channels, a_shift, b_shift, own, own + channels, last - first,
               channels);
    }
  });
  for (std::size_t part = 1; part < kParts; ++part)
    for (std::size_t c = 0; c < 2 * channels; ++c) parts[c] += parts[2 * part * channels + c];
  std::copy_n(parts.data(), channels, sums);
  std::copy_n(parts.data() + channels, channels, products);
}

void standardize(const float* x, const float* mean, const float* deviation, float* y, std::size_t rows,
                 std::size_t channels, int threads) {
  parallel(rows, rows * channels, threads, [&](std::size_t begin, std::size_t end) {
    standardize_rows(x + begin * channels, mean, deviation, y + begin * channels, end - begin, channels);
  });
}

void standardize_backward(const float* dy, const float* y, const float* dy_mean, const float* product_mean,
                          const float* deviation, float* dx, std::size_t rows, std::size_t channels, int threads) {
  parallel(rows, rows * channels, threads, [&](std::size_t begin, std::size_t end) {
    const std::size_t start = begin * channels;
    standardize_rows_backward(dy + start, y + start, dy_mean, product_mean, deviation, dx + start, end - begin,
                              channels);
  });
}

}  // namespace samovar::layers
