#include "stress_updates.hpp"

#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "kernels.hpp"
#include "solver_kernels.hpp"

namespace {

using samovar::solver::Row;
using samovar::solver::Step;
using Floats = std::vector<float>;

constexpr std::size_t kThreads = 3;
constexpr std::size_t kMostElements = 5000;  // of a thread
constexpr int kSteps = 3;
constexpr float kScale = 0.3f, kMomentum = 0.9f, kMomentum2 = 0.99f, kDelta = 1e-3f, kRate = 0.2f, kCount = 3.0f;

// What a rule reads and writes; a rule without a second state leaves it as it is.
struct Arrays {
  Floats weights, gradients, first, second;

  bool operator==(const Arrays& other) const {
    return weights == other.weights && first == other.first && second == other.second;
  }
};

struct Rule {
  const char* name;
  std::function<void(const Step&, float* first, float* second)> kernel;
  std::function<void(float& w, float g, float rate, float& first, float& second)> plain;
};

const Rule kRules[] = {
    {"sgd", [](const Step& s, float* h, float*) { samovar::solver::sgd(s, h, kMomentum); },
     [](float& w, float g, float rate, float& h, float&) { w = w - (h = kMomentum * h + rate * g); }},
    {"nesterov", [](const Step& s, float* h, float*) { samovar::solver::nesterov(s, h, kMomentum); },
     [](float& w, float g, float rate, float& h, float&) {
       const float before = h;
       h = kMomentum * before + rate * g;
       w = w - ((1.0f + kMomentum) * h - kMomentum * before);
     }},
    {"adagrad", [](const Step& s, float* h, float*) { samovar::solver::adagrad(s, h, kDelta); },
     [](float& w, float g, float rate, float& h, float&) {
       h = h + g * g;
       w = w - rate * (g / (std::sqrt(h) + kDelta));
     }},
    {"rmsprop", [](const Step& s, float* h, float*) { samovar::solver::rmsprop(s, h, kMomentum, kDelta); },
     [](float& w, float g, float rate, float& h, float&) {
       h = kMomentum * h + (1.0f - kMomentum) * (g * g);
       w = w - rate * (g / (std::sqrt(h) + kDelta));
     }},
    {"adadelta",
     [](const Step& s, float* squares, float* moves) {
       samovar::solver::adadelta(s, squares, moves, kMomentum, kDelta);
     },
     [](float& w, float g, float rate, float& squares, float& moves) {
       squares = kMomentum * squares + (1.0f - kMomentum) * (g * g);
       const float move = g * std::sqrt((kDelta + moves) / (kDelta + squares));
       moves = kMomentum * moves + (1.0f - kMomentum) * (move * move);
       w = w - rate * move;
     }},
    {"adam",
     [](const Step& s, float* means, float* squares) {
       samovar::solver::adam(s, means, squares, kMomentum, kMomentum2, kDelta);
     },
     [](float& w, float g, float rate, float& means, float& squares) {
       means = kMomentum * means + (1.0f - kMomentum) * g;
       squares = kMomentum2 * squares + (1.0f - kMomentum2) * (g * g);
       w = w - rate * (means / (std::sqrt(squares) + kDelta));
     }},
};

struct Elastic {
  const char* name;
  std::function<void(float* x, const float* sum, float* first, float* second, std::size_t size)> kernel;
  std::function<void(float& x, float sum, float& first, float& second)> plain;
};

// `first` is the center, `second` a difference or a velocity.
const Elastic kElastic[] = {
    {"elastic pull",
     [](float* x, const float*, float* c, float* d, std::size_t size) { samovar::elastic_pull(x, c, d, size, kRate); },
     [](float& x, float, float& c, float& d) { x = x - (d = kRate * (x - c)); }},
    {"elastic exchange",
     [](float* x, const float*, float* c, float* d, std::size_t size) {
       samovar::elastic_exchange(x, c, d, size, kRate);
     },
     [](float& x, float, float& c, float& d) {
       c = c + d;
       x = x - (d = kRate * (x - c));
     }},
    {"outer step",
     [](float* x, const float* sum, float* c, float* v, std::size_t size) {
       samovar::outer_step(x, c, v, sum, size, kCount, kRate, kMomentum);
     },
     [](float& x, float sum, float& c, float& v) {
       const float delta = sum / kCount;
       v = kMomentum * v + delta;
       x = c = c - kRate * (delta + kMomentum * v);
     }},
};

class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : random_(seed) {}
  std::size_t from(std::size_t first, std::size_t last) { return first + random_() % (last - first + 1); }
  Floats floats(std::size_t count, float lowest) {
    std::uniform_real_distribution<float> distribution(lowest, 1.0f);
    Floats result(count);
    for (float& value : result) value = distribution(random_);
    return result;
  }
  // Where the piece of each thread begins, and the end.
  std::vector<std::size_t> borders() {
    std::vector<std::size_t> result = {0};
    for (std::size_t i = 0; i < kThreads; ++i) result.push_back(result.back() + from(1, kMostElements));
    return result;
  }

 private:
  std::mt19937_64 random_;
};

void at_once(const std::vector<std::size_t>& borders, const std::function<void(std::size_t, std::size_t)>& work) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) threads.emplace_back(work, borders[i], borders[i + 1]);
  for (std::thread& thread : threads) thread.join();
}

float sign(float value) { return value > 0.0f ? 1.0f : value < 0.0f ? -1.0f : 0.0f; }

// Two rows of a piece, the second with weight decay of both kinds; the first may be empty.
std::vector<Row> rows_of(std::size_t start, std::size_t end) {
  const std::size_t middle = start + (end - start) / 3;
  return {{start, middle - start, 0.0f, 0.0f}, {middle, end - middle, 0.01f, 0.002f}};
}

void step_plainly(const Rule& rule, Arrays& arrays, const std::vector<Row>& rows, const float* rates) {
  for (std::size_t k = 0; k < rows.size(); ++k)
    for (std::size_t i = rows[k].start; i < rows[k].start + rows[k].size; ++i) {
      float& w = arrays.weights[i];
      const float g = kScale * arrays.gradients[i] + rows[k].l2 * w + rows[k].l1 * sign(w);
      rule.plain(w, g, rates[k], arrays.first[i], arrays.second[i]);
    }
}

bool rule_is_right(const Rule& rule, Numbers& numbers) {
  const auto borders = numbers.borders();
  const std::size_t size = borders.back();
  const float rates[] = {0.1f, 0.05f};
  Arrays found{numbers.floats(size, -1.0f), {}, Floats(size), Floats(size)}, wanted = found;
  for (int step = 0; step < kSteps; ++step) {
    wanted.gradients = found.gradients = numbers.floats(size, -1.0f);
    at_once(borders, [&](std::size_t start, std::size_t end) {
      const auto rows = rows_of(start, end);
      rule.kernel({found.weights.data(), found.gradients.data(), rows.data(), rates, rows.size(), kScale},
                  found.first.data(), found.second.data());
    });
    for (std::size_t i = 0; i < kThreads; ++i) step_plainly(rule, wanted, rows_of(borders[i], borders[i + 1]), rates);
  }
  return found == wanted;
}

bool elastic_is_right(const Elastic& step, Numbers& numbers) {
  const auto borders = numbers.borders();
  const std::size_t size = borders.back();
  Arrays found{numbers.floats(size, -1.0f), numbers.floats(size, -3.0f), numbers.floats(size, -1.0f), Floats(size)};
  Arrays wanted = found;
  for (int i = 0; i < kSteps; ++i) {
    at_once(borders, [&](std::size_t start, std::size_t end) {
      step.kernel(&found.weights[start], &found.gradients[start], &found.first[start], &found.second[start],
                  end - start);
    });
    for (std::size_t k = 0; k < size; ++k)
      step.plain(wanted.weights[k], wanted.gradients[k], wanted.first[k], wanted.second[k]);
  }
  return found == wanted;
}

// Two destinations, one of them a source too, from one to four sources.
template <typename Number>
bool sums_are_right(Numbers& numbers) {
  const auto borders = numbers.borders();
  std::vector<std::vector<Number>> sources;
  std::vector<Number> wanted(borders.back()), other(borders.back());
  for (std::size_t count = numbers.from(1, 4); sources.size() < count;) {
    const Floats values = numbers.floats(borders.back(), -1.0f);
    sources.emplace_back(values.begin(), values.end());
    for (std::size_t i = 0; i < wanted.size(); ++i)
      wanted[i] = sources.size() == 1 ? sources[0][i] : wanted[i] + sources.back()[i];
  }
  at_once(borders, [&](std::size_t start, std::size_t end) {
    std::vector<const Number*> from;
    for (const auto& source : sources) from.push_back(&source[start]);
    samovar::reduce(&other[start], from.data(), from.size(), end - start);
    Number* const to[] = {&sources.back()[start], &other[start]};
    if (sources.size() % 2 == 0) samovar::combine(to, 2, from.data(), from.size(), end - start);
  });
  return other == wanted && (sources.size() % 2 != 0 || sources.back() == wanted);
}

// Multiples of 1/4 have squares whose sums are exact.
bool squares_are_right(Numbers& numbers) {
  Floats values = numbers.floats(numbers.from(0, kMostElements), -1.0f);
  double wanted = 0.0;
  for (float& value : values) {
    value = std::round(4.0f * value) / 4.0f;
    wanted += static_cast<double>(value) * value;
  }
  return samovar::solver::sum_of_squares(values.data(), values.size()) == wanted;
}

}  // namespace

const char* stress_updates(std::uint64_t seed) {
  Numbers numbers(seed);
  for (const Rule& rule : kRules)
    if (!rule_is_right(rule, numbers)) return rule.name;
  for (const Elastic& step : kElastic)
    if (!elastic_is_right(step, numbers)) return step.name;
  for (int i = 0; i < 8; ++i) {
    if (!sums_are_right<float>(numbers)) return "sums in single precision";
    if (!sums_are_right<double>(numbers)) return "sums in double precision";
    if (!squares_are_right(numbers)) return "the sum of squares";
  }
  return nullptr;
}
