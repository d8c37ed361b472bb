#include "solver_bindings.hpp"

#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "interpreter.hpp"
#include "solver_kernels.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using samovar::WithoutGil;
using samovar::solver::Row;
using samovar::solver::Step;

namespace {

template <typename T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Rows of a buffer of `num_elements`: checked once, used at every step.
class SolverRows {
 public:
  SolverRows(std::size_t num_elements, Array<const std::uint64_t> starts, Array<const std::uint64_t> sizes,
             Array<const float> l2_decays, Array<const float> l1_decays)
      : num_elements_(num_elements) {
    if (sizes.size() != starts.size() || l2_decays.size() != starts.size() || l1_decays.size() != starts.size())
      throw std::invalid_argument("SolverRows: starts, sizes, l2_decays and l1_decays must have one entry per row");
    for (std::size_t k = 0; k < starts.size(); ++k) {
      const Row row{starts.data()[k], sizes.data()[k], l2_decays.data()[k], l1_decays.data()[k]};
      if (row.start > num_elements || row.size > num_elements - row.start)
        throw std::out_of_range("SolverRows: row " + std::to_string(k) + " lies outside the buffer");
      rows_.push_back(row);
    }
  }

  // Arrays of the size these rows are for, histories too.
  template <typename... Histories>
  Step step(Array<float> weights, Array<const float> gradients, Array<const float> rates, float gradient_scale,
            const Histories&... histories) const {
    if (weights.size() != num_elements_ || gradients.size() != num_elements_ ||
        ((histories.size() != num_elements_) || ...))
      throw std::invalid_argument("weights, gradients and histories must have " + std::to_string(num_elements_) +
                                  " elements, as the rows say");
    if (rates.size() != rows_.size())
      throw std::invalid_argument("rates must have one entry per row: " + std::to_string(rows_.size()));
    return {weights.data(), gradients.data(), rows_.data(), rates.data(), rows_.size(), gradient_scale};
  }

 private:
  std::size_t num_elements_;
  std::vector<Row> rows_;
};

template <auto kRule>
void one_history(Array<float> weights, Array<const float> gradients, Array<float> history, const SolverRows& rows,
                 Array<const float> rates, float gradient_scale, float constant) {
  kRule(rows.step(weights, gradients, rates, gradient_scale, history), history.data(), constant);
}

void rmsprop(Array<float> weights, Array<const float> gradients, Array<float> history, const SolverRows& rows,
             Array<const float> rates, float gradient_scale, float rms_decay, float delta) {
  samovar::solver::rmsprop(rows.step(weights, gradients, rates, gradient_scale, history), history.data(), rms_decay,
                           delta);
}

void adadelta(Array<float> weights, Array<const float> gradients, Array<float> squares, Array<float> moves,
              const SolverRows& rows, Array<const float> rates, float gradient_scale, float momentum, float delta) {
  samovar::solver::adadelta(rows.step(weights, gradients, rates, gradient_scale, squares, moves), squares.data(),
                            moves.data(), momentum, delta);
}

void adam(Array<float> weights, Array<const float> gradients, Array<float> means, Array<float> squares,
          const SolverRows& rows, Array<const float> rates, float gradient_scale, float momentum, float momentum2,
          float delta) {
  samovar::solver::adam(rows.step(weights, gradients, rates, gradient_scale, means, squares), means.data(),
                        squares.data(), momentum, momentum2, delta);
}

template <typename Function, typename... Extra>
void bind_rule(nb::module_& module, const char* name, const char* constant, Function function, Extra&&... extra) {
  module.def(name, function, "weights"_a.noconvert(), "gradients"_a.noconvert(), "history"_a.noconvert(), "rows"_a,
             "rates"_a.noconvert(), "gradient_scale"_a, nb::arg(constant), std::forward<Extra>(extra)...,
             WithoutGil());
}

}  // namespace

void samovar::bind_solver(nb::module_& module) {
  nb::class_<SolverRows>(module, "SolverRows")
      .def(nb::init<std::size_t, Array<const std::uint64_t>, Array<const std::uint64_t>, Array<const float>,
                    Array<const float>>(),
           "num_elements"_a, "starts"_a.noconvert(), "sizes"_a.noconvert(), "l2_decays"_a.noconvert(),
           "l1_decays"_a.noconvert());
  bind_rule(module, "sgd_step", "momentum", &one_history<&samovar::solver::sgd>);
  bind_rule(module, "nesterov_step", "momentum", &one_history<&samovar::solver::nesterov>);
  bind_rule(module, "adagrad_step", "delta", &one_history<&samovar::solver::adagrad>);
  bind_rule(module, "rmsprop_step", "rms_decay", &rmsprop, "delta"_a);
  module.def("adadelta_step", &adadelta, "weights"_a.noconvert(), "gradients"_a.noconvert(), "squares"_a.noconvert(),
             "moves"_a.noconvert(), "rows"_a, "rates"_a.noconvert(), "gradient_scale"_a, "momentum"_a, "delta"_a,
             WithoutGil());
  module.def("adam_step", &adam, "weights"_a.noconvert(), "gradients"_a.noconvert(), "means"_a.noconvert(),
             "squares"_a.noconvert(), "rows"_a, "rates"_a.noconvert(), "gradient_scale"_a, "momentum"_a, "momentum2"_a,
             "delta"_a, WithoutGil());
  module.def(
      "sum_of_squares",
      [](Array<const float> values) { return samovar::solver::sum_of_squares(values.data(), values.size()); },
      "values"_a.noconvert(), WithoutGil());
}
