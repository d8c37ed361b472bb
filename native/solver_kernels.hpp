// Update rules on flat buffers: each reads and writes every array once, with one rounding per operation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace samovar::solver {

// Elements [start, start + size), a parameter, with its own weight decay: of their squares (l2) and their sizes (l1).
struct Row {
  std::uint64_t start;
  std::uint64_t size;
  float l2;
  float l1;
};

// What all rules have in common. In every rule, with one rate per row,
//   g = gradient_scale * gradient + l2 * weight + l1 * sign(weight)
struct Step {
  float* weights;
  const float* gradients;
  const Row* rows;
  const float* rates;
  std::size_t num_rows;
  float gradient_scale;
};

// h = momentum * h + rate * g;  weight = weight - h
void sgd(const Step& step, float* history, float momentum);

// h' = momentum * h + rate * g;  weight = weight - ((1 + momentum) * h' - momentum * h);  h = h'
void nesterov(const Step& step, float* history, float momentum);

// h = h + g * g;  weight = weight - rate * (g / (sqrt(h) + delta))
void adagrad(const Step& step, float* history, float delta);

// h = rms_decay * h + (1 - rms_decay) * (g * g);  weight = weight - rate * (g / (sqrt(h) + delta))
void rmsprop(const Step& step, float* history, float rms_decay, float delta);

// s = momentum * s + (1 - momentum) * (g * g);  u = g * sqrt((delta + m) / (delta + s));
// m = momentum * m + (1 - momentum) * (u * u);  weight = weight - rate * u        (s: squares, m: moves)
void adadelta(const Step& step, float* squares, float* moves, float momentum, float delta);

// m = momentum * m + (1 - momentum) * g;  s = momentum2 * s + (1 - momentum2) * (g * g);
// weight = weight - rate * (m / (sqrt(s) + delta))                                 (m: means, s: squares)
void adam(const Step& step, float* means, float* squares, float momentum, float momentum2, float delta);

// In double precision and in one order of additions, whatever the width of the machine's vectors.
double sum_of_squares(const float* values, std::size_t size);

}  // namespace samovar::solver
