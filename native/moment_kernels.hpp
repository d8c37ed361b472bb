// Batch normalization of numbers with their channels last: (rows, channels) in memory.
#pragma once

#include <cstddef>

namespace samovar::layers {

// sums[c] = sum of u, products[c] = sum of u * v over all rows, with u = a - a_shift[c] and v = b - b_shift[c] in
// double precision. Rows are added in one order, whatever `threads` and the vectors' width.
void column_moments(const float* a, const float* b, const float* a_shift, const float* b_shift, double* sums,
                    double* products, std::size_t rows, std::size_t channels, int threads);

// y = (x - mean[c]) / deviation[c]
void standardize(const float* x, const float* mean, const float* deviation, float* y, std::size_t rows,
                 std::size_t channels, int threads);

// dx = (dy - dy_mean[c] - y * product_mean[c]) / deviation[c]
void standardize_backward(const float* dy, const float* y, const float* dy_mean, const float* product_mean,
                          const float* deviation, float* dx, std::size_t rows, std::size_t channels, int threads);

}  // namespace samovar::layers
