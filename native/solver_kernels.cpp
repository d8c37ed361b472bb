#include "solver_kernels.hpp"

#include <cmath>

#include "vectorized.hpp"

namespace samovar::solver {
namespace {

// Additions of sum_of_squares that go on side by side.
constexpr std::size_t kLanes = 16;

// The part of a step that concerns one row.
struct Run {
  float* __restrict weights;
  const float* __restrict gradients;
  std::size_t start;
  std::size_t size;
  float rate;
  float gradient_scale;
  float l2;
  float l1;
};

template <typename Rule>
void for_each_row(const Step& step, Rule rule) {
  for (std::size_t k = 0; k < step.num_rows; ++k) {
    const Row& row = step.rows[k];
    rule(Run{step.weights + row.start, step.gradients + row.start, row.start, row.size, step.rates[k],
             step.gradient_scale, row.l2, row.l1});
  }
}

inline float sign(float value) { return static_cast<float>(value > 0.0f) - static_cast<float>(value < 0.0f); }

inline float regularized(const Run& run, float gradient, float weight) {
  return run.gradient_scale * gradient + run.l2 * weight + run.l1 * sign(weight);
}

// Runs come by value: the compiler then knows that no write to an array changes them.
SAMOVAR_VECTORIZED void sgd_run(const Run run, float* __restrict history, float momentum) {
  for (std::size_t i = 0; i < run.size; ++i) {
    const float gradient = regularized(run, run.gradients[i], run.weights[i]);
    history[i] = momentum * history[i] + run.rate * gradient;
    run.weights[i] = run.weights[i] - history[i];
  }
}

SAMOVAR_VECTORIZED void nesterov_run(const Run run, float* __restrict history, float momentum) {
  const float ahead = 1.0f + momentum;
  for (std::size_t i = 0; i < run.size; ++i) {
    const float gradient = regularized(run, run.gradients[i], run.weights[i]);
    const float before = history[i];
    const float after = momentum * before + run.rate * gradient;
    history[i] = after;
    run.weights[i] = run.weights[i] - (ahead * after - momentum * before);
  }
}

SAMOVAR_VECTORIZED void adagrad_run(const Run run, float* __restrict history, float delta) {
  for (std::size_t i = 0; i < run.size; ++i) {
    const float gradient = regularized(run, run.gradients[i], run.weights[i]);
    history[i] = history[i] + gradient * gradient;
    run.weights[i] = run.weights[i] - run.rate * (gradient / (std::sqrt(history[i]) + delta));
  }
}

SAMOVAR_VECTORIZED void rmsprop_run(const Run run, float* __restrict history, float rms_decay, float delta) {
  const float fresh = 1.0f - rms_decay;
  for (std::size_t i = 0; i < run.size; ++i) {
    const float gradient = regularized(run, run.gradients[i], run.weights[i]);
    history[i] = rms_decay * history[i] + fresh * (gradient * gradient);
    run.weights[i] = run.weights[i] - run.rate * (gradient / (std::sqrt(history[i]) + delta));
  }
}

SAMOVAR_VECTORIZED void adadelta_run(const Run run, float* __restrict squares, float* __restrict moves,
                                     float momentum, float delta) {
  const float fresh = 1.0f - momentum;
  for (std::size_t i = 0; i < run.size; ++i) {
    const float gradient = regularized(run, run.gradients[i], run.weights[i]);
    squares[i] = momentum * squares[i] + fresh * (gradient * gradient);
    const float move = gradient * std::sqrt((delta + moves[i]) / (delta + squares[i]));
    moves[i] = momentum * moves[i] + fresh * (move * move);
    run.weights[i] = run.weights[i] - run.rate * move;
  }
}

SAMOVAR_VECTORIZED void adam_run(const Run run, float* __restrict means, float* __restrict squares, float momentum,
                                 float momentum2, float delta) {
  const float fresh = 1.0f - momentum;
  const float fresh2 = 1.0f - momentum2;
  for (std::size_t i = 0; i < run.size; ++i) {
    const float gradient = regularized(run, run.gradients[i], run.weights[i]);
    means[i] = momentum * means[i] + fresh * gradient;
    squares[i] = momentum2 * squares[i] + fresh2 * (gradient * gradient);
    run.weights[i] = run.weights[i] - run.rate * (means[i] / (std::sqrt(squares[i]) + delta));
  }
}

SAMOVAR_VECTORIZED void add_squares(double* __restrict lanes, const float* __restrict values, std::size_t size) {
  for (std::size_t i = 0; i + kLanes <= size; i += kLanes)
    for (std::size_t k = 0; k < kLanes; ++k) {
      const double value = values[i + k];
      lanes[k] += value * value;
    }
}

}  // namespace

void sgd(const Step& step, float* history, float momentum) {
  for_each_row(step, [=](const Run& run) { sgd_run(run, history + run.start, momentum); });
}

void nesterov(const Step& step, float* history, float momentum) {
  for_each_row(step, [=](const Run& run) { nesterov_run(run, history + run.start, momentum); });
}

void adagrad(const Step& step, float* history, float delta) {
  for_each_row(step, [=](const Run& run) { adagrad_run(run, history + run.start, delta); });
}

void rmsprop(const Step& step, float* history, float rms_decay, float delta) {
  for_each_row(step, [=](const Run& run) { rmsprop_run(run, history + run.start, rms_decay, delta); });
}

void adadelta(const Step& step, float* squares, float* moves, float momentum, float delta) {
  for_each_row(step,
               [=](const Run& run) { adadelta_run(run, squares + run.start, moves + run.start, momentum, delta); });
}

void adam(const Step& step, float* means, float* squares, float momentum, float momentum2, float delta) {
  for_each_row(step, [=](const Run& run) {
    adam_run(run, means + run.start, squares + run.start, momentum, momentum2, delta);
  });
}

double sum_of_squares(const float* values, std::size_t size) {
  double lanes[kLanes] = {};
  add_squares(lanes, values, size);
  for (std::size_t i = size - size % kLanes; i < size; ++i) {
    const double value = values[i];
    lanes[i % kLanes] += value * value;
  }
  double sum = 0.0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace samovar::solver
