// The softmax loss of few classes: many short operations of torch in one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace samovar::layers {

struct SoftmaxLoss {
  double sum;           // of -max(log p[label], least_log) over the rows that count
  std::size_t counted;  // rows whose label is not the one to ignore
  bool is_valid;        // every label that counts is a class
};

// scores (rows, classes), labels (rows). gradient[i] = softmax(scores)[i] - (1 at the label); 0 in rows that do not
// count.
SoftmaxLoss softmax_loss(const float* scores, const std::int64_t* labels, float* gradient, std::size_t rows,
                         std::size_t classes, std::optional<std::int64_t> ignored, float least_log);

}  // namespace samovar::layers
