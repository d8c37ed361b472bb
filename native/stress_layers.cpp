#include "stress_layers.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <thread>
#include <vector>

#include "moment_kernels.hpp"
#include "pooling_kernels.hpp"
#include "response_kernels.hpp"
#include "softmax_kernels.hpp"

// The parallel region of an OpenMP library, with threads that a race detector knows.
extern "C" __attribute__((visibility("default"))) void GOMP_parallel(void (*function)(void*), void* data,
                                                                     unsigned num_threads, unsigned) {
  std::vector<std::thread> others;
  for (unsigned i = 1; i < num_threads; ++i) others.emplace_back(function, data);
  function(data);
  for (std::thread& other : others) other.join();
}

namespace {

using namespace samovar::layers;
using Floats = std::vector<float>;

constexpr int kThreads = 3;

// Small whole numbers: their sums are exact in any order, and many are equal.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t end) { return random_() % end; }
  std::size_t from(std::size_t first, std::size_t last) { return first + below(last - first + 1); }
  Floats floats(std::size_t count) {
    Floats result(count);
    for (float& value : result) value = static_cast<float>(below(17)) - 8.0f;
    return result;
  }

 private:
  std::mt19937_64 random_;
};

bool is_close(const Floats& found, const std::vector<double>& wanted) {
  double largest = 1.0;
  for (const double value : wanted) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (!(std::abs(found[i] - wanted[i]) <= 1e-5 * largest)) return false;
  return true;
}

// Which of `count` positions around `at` there are.
std::pair<std::size_t, std::size_t> around(std::size_t at, std::size_t size, std::size_t count) {
  const std::size_t half = size / 2;
  return {at < half ? 0 : at - half, std::min(at + half + 1, count)};
}

// (outer, height, width, inner) with neighbours in `size` rows of the height and `columns` of the width.
struct Square {
  std::size_t outer, height, width, inner, rows, columns;

  std::size_t count() const { return outer * height * width * inner; }

  std::vector<double> sums(const std::vector<double>& values) const {
    std::vector<double> result(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t c = i % inner, x = i / inner % width, y = i / inner / width % height;
      const std::size_t start = i - c - (y * width + x) * inner;
      const auto [top, bottom] = around(y, rows, height);
      const auto [left, right] = around(x, columns, width);
      for (std::size_t row = top; row < bottom; ++row)
        for (std::size_t column = left; column < right; ++column)
          result[i] += values[start + (row * width + column) * inner + c];
    }
    return result;
  }
};

// Forward and backward by the definition; `y` and `dx` are what the kernels found.
bool is_response(const Square& square, const Response& response, const Floats& x, const Floats& dy, const Floats& y,
                 const Floats& dx) {
  std::vector<double> squares, wanted, shares, gradient;
  for (const float value : x) squares.push_back(static_cast<double>(value) * value);
  const std::vector<double> sums = square.sums(squares);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double s = response.k + response.factor * sums[i];
    wanted.push_back(x[i] * std::pow(s, -0.75));
    shares.push_back(dy[i] * wanted[i] / s);
    gradient.push_back(dy[i] * std::pow(s, -0.75));
  }
  const std::vector<double> shared = square.sums(shares);
  for (std::size_t i = 0; i < x.size(); ++i) gradient[i] -= response.slope * x[i] * shared[i];
  return is_close(y, wanted) && is_close(dx, gradient);
}

bool responses_are_right(Numbers& numbers) {
  const std::size_t size = 2 * numbers.below(4) + 1;
  const Response response{size, 0.1f, 0.15f, 1.0f, Beta::kThreeQuarters, false};
  Square square{numbers.from(1, 3), numbers.from(1, 40), numbers.from(1, 40), numbers.from(1, 20), size, size};
  const Floats x = numbers.floats(square.count()), dy = numbers.floats(square.count());
  Floats y(x.size()), dx(x.size());
  respond_within(x.data(), y.data(), square.outer, square.height, square.width, square.inner, response, kThreads);
  respond_within_backward(x.data(), dy.data(), dx.data(), square.outer, square.height, square.width, square.inner,
                          response, kThreads);
  if (!is_response(square, response, x, dy, y, dx)) return false;
  square.rows = 1;  // neighbours along the width alone
  const std::size_t outer = square.outer * square.height;
  respond_across(x.data(), y.data(), outer, square.width, square.inner, response, kThreads);
  respond_across_backward(x.data(), dy.data(), dx.data(), outer, square.width, square.inner, response, kThreads);
  return is_response(square, response, x, dy, y, dx);
}

PoolAxis pool_axis(Numbers& numbers) {
  PoolAxis axis{};
  axis.kernel = numbers.from(1, 7);
  axis.size = numbers.from(1, 30);
  axis.stride = numbers.from(1, 9);
  axis.pad = numbers.below(axis.kernel);
  axis.outputs = (axis.size + axis.pad - 1) / axis.stride + 1;
  return axis;
}

bool maxima_are_right(Numbers& numbers) {
  const Pool pool{numbers.from(1, 3), numbers.from(1, 70), pool_axis(numbers), pool_axis(numbers)};
  const PoolAxis &rows = pool.rows, &columns = pool.columns;
  const std::size_t num_inputs = pool.images * rows.size * columns.size * pool.channels;
  const std::size_t num_outputs = pool.images * rows.outputs * columns.outputs * pool.channels;
  const Floats x = numbers.floats(num_inputs), dy = numbers.floats(num_outputs);
  Floats y(num_outputs), dx(num_inputs), wanted(num_inputs, 0.0f);
  std::vector<std::int32_t> where(num_outputs);
  max_pool(x.data(), y.data(), where.data(), pool, false, kThreads);
  max_pool_backward(dy.data(), where.data(), dx.data(), pool, kThreads);
  for (std::size_t i = 0; i < num_outputs; ++i) {
    const std::size_t c = i % pool.channels, column = i / pool.channels % columns.outputs;
    const std::size_t row = i / pool.channels / columns.outputs % rows.outputs;
    const std::size_t image = i / pool.channels / columns.outputs / rows.outputs;
    const float* best = nullptr;
    for (std::size_t r = row * rows.stride; r < row * rows.stride + rows.kernel; ++r)
      for (std::size_t k = column * columns.stride; k < column * columns.stride + columns.kernel; ++k) {
        if (r < rows.pad || r >= rows.size + rows.pad || k < columns.pad || k >= columns.size + columns.pad) continue;
        const std::size_t pixel = (image * rows.size + r - rows.pad) * columns.size + k - columns.pad;
        const float* value = &x[pixel * pool.channels + c];
        if (best == nullptr || *value > *best) best = value;
      }
    if (y[i] != *best) return false;
    wanted[static_cast<std::size_t>(best - x.data())] += dy[i];
  }
  return dx == wanted;
}

bool moments_are_right(Numbers& numbers) {
  const std::size_t rows = numbers.from(1, 3000), channels = numbers.from(1, 50);
  const Floats x = numbers.floats(rows * channels), shift = numbers.floats(channels);
  const Floats means(channels, 1.0f), deviations(channels, 2.0f);
  std::vector<double> sums(channels), squares(channels), wanted(channels), wanted_squares(channels);
  Floats y(x.size()), dx(x.size());
  column_moments(x.data(), x.data(), shift.data(), shift.data(), sums.data(), squares.data(), rows, channels, kThreads);
  standardize(x.data(), means.data(), deviations.data(), y.data(), rows, channels, kThreads);
  standardize_backward(x.data(), y.data(), means.data(), means.data(), deviations.data(), dx.data(), rows, channels,
                       kThreads);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double value = x[i] - shift[i % channels];
    wanted[i % channels] += value;
    wanted_squares[i % channels] += value * value;
    if (y[i] != (x[i] - 1.0f) / 2.0f || dx[i] != (x[i] - 1.0f - y[i]) / 2.0f) return false;
  }
  return sums == wanted && squares == wanted_squares;
}

bool losses_are_right(Numbers& numbers) {
  const std::size_t rows = numbers.from(1, 20), classes = numbers.from(1, 20);
  const Floats scores = numbers.floats(rows * classes);
  std::vector<std::int64_t> labels(rows);
  for (std::int64_t& label : labels) label = static_cast<std::int64_t>(numbers.below(classes));
  Floats gradient(scores.size());
  const SoftmaxLoss loss =
      softmax_loss(scores.data(), labels.data(), gradient.data(), rows, classes, std::nullopt, -100.0f);
  double wanted = 0.0;
  for (std::size_t row = 0; row < rows; ++row) {
    double sum = 0.0;
    for (std::size_t i = 0; i < classes; ++i) sum += std::exp(static_cast<double>(scores[row * classes + i]));
    wanted += std::log(sum) - scores[row * classes + static_cast<std::size_t>(labels[row])];
  }
  return loss.is_valid && loss.counted == rows && std::abs(loss.sum - wanted) <= 1e-5 * (1.0 + wanted);
}

}  // namespace

const char* stress_layers(std::uint64_t seed) {
  Numbers numbers(seed);
  for (int i = 0; i < 10; ++i) {
    if (!responses_are_right(numbers)) return "local response normalization";
    if (!maxima_are_right(numbers)) return "maximum pooling";
    if (!moments_are_right(numbers)) return "batch normalization";
    if (!losses_are_right(numbers)) return "softmax loss";
  }
  return nullptr;
}
