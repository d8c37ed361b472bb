#include "softmax_kernels.hpp"

#include <algorithm>
#include <cmath>

namespace samovar::layers {
namespace {

// Leaves softmax(scores) in `result`; returns log softmax(scores)[label]. Not-a-number makes everything one.
float softmax_row(const float* scores, float* result, std::size_t classes, std::size_t label) {
  float largest = scores[0];
  for (std::size_t i = 1; i < classes; ++i) largest = std::max(largest, scores[i]);
  float sum = 0.0f;
  for (std::size_t i = 0; i < classes; ++i) {
    result[i] = std::exp(scores[i] - largest);
    sum += result[i];
  }
  for (std::size_t i = 0; i < classes; ++i) result[i] /= sum;
  return scores[label] - largest - std::log(sum);
}

}  // namespace

SoftmaxLoss softmax_loss(const float* scores, const std::int64_t* labels, float* gradient, std::size_t rows,
                         std::size_t classes, std::optional<std::int64_t> ignored, float least_log) {
  SoftmaxLoss loss{0.0, 0, true};
  for (std::size_t row = 0; row < rows; ++row, scores += classes, gradient += classes) {
    if (ignored && labels[row] == *ignored) {
      std::fill_n(gradient, classes, 0.0f);
      continue;
    }
    if (labels[row] < 0 || static_cast<std::uint64_t>(labels[row]) >= classes) return {0.0, 0, false};
    const std::size_t label = static_cast<std::size_t>(labels[row]);
    const float log_probability = softmax_row(scores, gradient, classes, label);
    gradient[label] -= 1.0f;
    loss.sum -= log_probability < least_log ? least_log : log_probability;
    ++loss.counted;
  }
  return loss;
}

}  // namespace samovar::layers
