#include "layer_bindings.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "interpreter.hpp"
#include "moment_kernels.hpp"
#include "pooling_kernels.hpp"
#include "response_kernels.hpp"
#include "softmax_kernels.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using samovar::WithoutGil;
using samovar::layers::Beta;
using samovar::layers::Pool;
using samovar::layers::PoolAxis;
using samovar::layers::Response;

namespace {

using Sizes = std::tuple<std::size_t, std::size_t, std::size_t>;
using Window = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t, std::size_t>;

// Tensors come as addresses: an exchange of arrays costs more than the small kernels take. The caller checks
// types, sizes and order in memory.
template <typename Number>
Number* at(std::uintptr_t address) {
  return reinterpret_cast<Number*>(address);
}

Response response(std::size_t size, float factor, float beta, float k, bool rectifies) {
  if (size % 2 == 0) throw std::invalid_argument("Response: size must be odd");
  if (beta != 0.75f && beta != 0.5f && beta != 1.0f)
    throw std::invalid_argument("Response: beta must be 0.75, 0.5 or 1");
  const Beta kind = beta == 0.75f ? Beta::kThreeQuarters : beta == 0.5f ? Beta::kHalf : Beta::kOne;
  return {size, factor, 2.0f * factor * beta, k, kind, rectifies};
}

PoolAxis axis(const Window& window) {
  const auto [size, outputs, kernel, stride, pad] = window;
  if (stride == 0 || pad >= kernel || size == 0 || (outputs > 0 && (outputs - 1) * stride >= size + pad))
    throw std::invalid_argument("Pool: every window must hold a pixel, with stride at least 1 and pad below kernel");
  return {size, outputs, kernel, stride, pad};
}

// A layer's pooling, for any number of images.
struct LayerPool {
  PoolAxis rows;
  PoolAxis columns;
  bool rectifies;

  Pool of(std::size_t images, std::size_t channels) const { return {images, channels, rows, columns}; }
};

void bind_response(nb::module_& module) {
  nb::class_<Response>(module, "Response")
      .def("__init__",
           [](Response* self, std::size_t size, float factor, float beta, float k, bool rectifies) {
             new (self) Response(response(size, factor, beta, k, rectifies));
           },
           "size"_a, "factor"_a, "beta"_a, "k"_a, "rectifies"_a)
      .def("across",
           [](const Response& self, std::uintptr_t x, std::uintptr_t y, const Sizes& sizes, int threads) {
             const auto [outer, channels, inner] = sizes;
             samovar::layers::respond_across(at<const float>(x), at<float>(y), outer, channels, inner, self, threads);
           },
           "x"_a, "y"_a, "sizes"_a, "threads"_a, WithoutGil())
      .def("across_backward",
           [](const Response& self, std::uintptr_t x, std::uintptr_t dy, std::uintptr_t dx, const Sizes& sizes,
              int threads) {
             const auto [outer, channels, inner] = sizes;
             samovar::layers::respond_across_backward(at<const float>(x), at<const float>(dy), at<float>(dx), outer,
                                                      channels, inner, self, threads);
           },
           "x"_a, "dy"_a, "dx"_a, "sizes"_a, "threads"_a, WithoutGil())
      .def("within",
           [](const Response& self, std::uintptr_t x, std::uintptr_t y, std::size_t outer, const Sizes& sizes,
              int threads) {
             const auto [height, width, inner] = sizes;
             samovar::layers::respond_within(at<const float>(x), at<float>(y), outer, height, width, inner, self,
                                             threads);
           },
           "x"_a, "y"_a, "outer"_a, "sizes"_a, "threads"_a, WithoutGil())
      .def("within_backward",
           [](const Response& self, std::uintptr_t x, std::uintptr_t dy, std::uintptr_t dx, std::size_t outer,
              const Sizes& sizes, int threads) {
             const auto [height, width, inner] = sizes;
             samovar::layers::respond_within_backward(at<const float>(x), at<const float>(dy), at<float>(dx), outer,
                                                      height, width, inner, self, threads);
           },
           "x"_a, "dy"_a, "dx"_a, "outer"_a, "sizes"_a, "threads"_a, WithoutGil());
}

void bind_pool(nb::module_& module) {
  nb::class_<LayerPool>(module, "MaxPool")
      .def("__init__",
           [](LayerPool* self, const Window& rows, const Window& columns, bool rectifies) {
             new (self) LayerPool{axis(rows), axis(columns), rectifies};
           },
           "rows"_a, "columns"_a, "rectifies"_a)
      .def("forward",
           [](const LayerPool& self, std::uintptr_t x, std::uintptr_t y, std::uintptr_t where, std::size_t images,
              std::size_t channels, int threads) {
             samovar::layers::max_pool(at<const float>(x), at<float>(y), at<std::int32_t>(where),
                                       self.of(images, channels), self.rectifies, threads);
           },
           "x"_a, "y"_a, "where"_a, "images"_a, "channels"_a, "threads"_a, WithoutGil())
      .def("backward",
           [](const LayerPool& self, std::uintptr_t dy, std::uintptr_t where, std::uintptr_t dx, std::size_t images,
              std::size_t channels, int threads) {
             samovar::layers::max_pool_backward(at<const float>(dy), at<const std::int32_t>(where), at<float>(dx),
                                                self.of(images, channels), threads);
           },
           "dy"_a, "where"_a, "dx"_a, "images"_a, "channels"_a, "threads"_a, WithoutGil());
}

std::tuple<double, std::size_t, bool> softmax_loss(std::uintptr_t scores, std::uintptr_t labels,
                                                   std::uintptr_t gradient, std::size_t rows, std::size_t classes,
                                                   std::optional<std::int64_t> ignored, float least_log) {
  const auto loss = samovar::layers::softmax_loss(at<const float>(scores), at<const std::int64_t>(labels),
                                                  at<float>(gradient), rows, classes, ignored, least_log);
  return {loss.sum, loss.counted, loss.is_valid};
}

void bind_moments(nb::module_& module) {
  module.def(
      "column_moments",
      [](std::uintptr_t a, std::uintptr_t b, std::uintptr_t a_shift, std::uintptr_t b_shift, std::uintptr_t sums,
         std::uintptr_t products, std::size_t rows, std::size_t channels, int threads) {
        samovar::layers::column_moments(at<const float>(a), at<const float>(b), at<const float>(a_shift),
                                        at<const float>(b_shift), at<double>(sums), at<double>(products), rows,
                                        channels, threads);
      },
      "a"_a, "b"_a, "a_shift"_a, "b_shift"_a, "sums"_a, "products"_a, "rows"_a, "channels"_a, "threads"_a,
      WithoutGil());
  module.def(
      "standardize",
      [](std::uintptr_t x, std::uintptr_t mean, std::uintptr_t deviation, std::uintptr_t y, std::size_t rows,
         std::size_t channels, int threads) {
        samovar::layers::standardize(at<const float>(x), at<const float>(mean), at<const float>(deviation),
                                     at<float>(y), rows, channels, threads);
      },
      "x"_a, "mean"_a, "deviation"_a, "y"_a, "rows"_a, "channels"_a, "threads"_a, WithoutGil());
  module.def(
      "standardize_backward",
      [](std::uintptr_t dy, std::uintptr_t y, std::uintptr_t dy_mean, std::uintptr_t product_mean,
         std::uintptr_t deviation, std::uintptr_t dx, std::size_t rows, std::size_t channels, int threads) {
        samovar::layers::standardize_backward(at<const float>(dy), at<const float>(y), at<const float>(dy_mean),
                                              at<const float>(product_mean), at<const float>(deviation),
                                              at<float>(dx), rows, channels, threads);
      },
      "dy"_a, "y"_a, "dy_mean"_a, "product_mean"_a, "deviation"_a, "dx"_a, "rows"_a, "channels"_a, "threads"_a,
      WithoutGil());
}

}  // namespace

void samovar::bind_layers(nb::module_& module) {
  bind_response(module);
  bind_pool(module);
  bind_moments(module);
  module.def("softmax_loss", &softmax_loss, "scores"_a, "labels"_a, "gradient"_a, "rows"_a, "classes"_a,
             "ignored"_a.none(), "least_log"_a, WithoutGil());
}
