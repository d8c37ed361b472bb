// Plain buffers in, plain buffers out. The GIL is released in everything that moves, adds or waits.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "center_bindings.hpp"
#include "codec_bindings.hpp"
#include "interpreter.hpp"
#include "kernels.hpp"
#include "layer_bindings.hpp"
#include "parallel.hpp"
#include "program.hpp"
#include "progress.hpp"
#include "solver_bindings.hpp"
#include "waiting.hpp"
#include "window.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using samovar::CombineOperation;
using samovar::Program;
using samovar::ProgressThread;
using samovar::Segment;
using samovar::wait_in_slices;
using samovar::Window;
using samovar::WithoutGil;

namespace {

template <typename T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<std::uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using AnyBuffer = nb::ndarray<nb::c_contig, nb::device::cpu>;
using ConstBuffer = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

template <typename Number>
void reduce(Array<Number> destination, const std::vector<Array<const Number>>& sources) {
  std::vector<const Number*> pointers;
  for (const auto& source : sources) {
    if (source.size() != destination.size())
      throw std::invalid_argument("reduce: a source has " + std::to_string(source.size()) + " elements, the destination " +
                                  std::to_string(destination.size()));
    pointers.push_back(source.data());
  }
  if (pointers.empty()) throw std::invalid_argument("reduce needs at least one source");
  samovar::reduce(destination.data(), pointers.data(), pointers.size(), destination.size());
}

void require_equal_sizes(const char* kernel, std::initializer_list<std::size_t> sizes) {
  for (const std::size_t size : sizes)
    if (size != *sizes.begin()) throw std::invalid_argument(std::string(kernel) + ": the arrays must have equal sizes");
}

void elastic_pull(Array<float> weights, Array<const float> center, Array<float> difference, float rate) {
  require_equal_sizes("elastic_pull", {weights.size(), center.size(), difference.size()});
  samovar::elastic_pull(weights.data(), center.data(), difference.data(), weights.size(), rate);
}

void elastic_exchange(Array<float> weights, Array<float> center, Array<float> difference, float rate) {
  require_equal_sizes("elastic_exchange", {weights.size(), center.size(), difference.size()});
  samovar::elastic_exchange(weights.data(), center.data(), difference.data(), weights.size(), rate);
}

void outer_step(Array<float> weights, Array<float> center, Array<float> velocity, Array<const float> sum, float count,
                float rate, float momentum) {
  require_equal_sizes("outer_step", {weights.size(), center.size(), velocity.size(), sum.size()});
  samovar::outer_step(weights.data(), center.data(), velocity.data(), sum.data(), weights.size(), count, rate,
                      momentum);
}

// What the system refused is an OSError with its number, as everywhere in Python.
void raise_os_error(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::system_error& error) {
    PyErr_SetObject(PyExc_OSError, nb::make_tuple(error.code().value(), error.what()).ptr());
  }
}

template <typename Number>
void add_combine(Program& program, const std::vector<Array<Number>>& destinations,
                 const std::vector<Array<const Number>>& sources) {
  if (sources.empty() || destinations.empty()) throw std::invalid_argument("combine needs sources and destinations");
  constexpr auto element = sizeof(Number) == 4 ? samovar::Element::kFloat32 : samovar::Element::kFloat64;
  CombineOperation operation{{}, {}, destinations[0].size(), element};
  for (const auto& array : destinations) operation.destinations.push_back(reinterpret_cast<std::byte*>(array.data()));
  for (const auto& array : sources) operation.sources.push_back(reinterpret_cast<const std::byte*>(array.data()));
  const auto differs = [&](const auto& array) { return array.size() != operation.count; };
  if (std::any_of(sources.begin(), sources.end(), differs) ||
      std::any_of(destinations.begin(), destinations.end(), differs))
    throw std::invalid_argument("combine: sources and destinations must have equal sizes");
  program.add(std::move(operation));
}

void add_put(Program& program, std::uint32_t peer, std::uint32_t slot, AnyBuffer destination, ConstBuffer source) {
  if (destination.nbytes() != source.nbytes())
    throw std::invalid_argument("put: " + std::to_string(source.nbytes()) + " bytes into a place of " +
                                std::to_string(destination.nbytes()));
  program.add(samovar::PutOperation{peer, slot, static_cast<std::byte*>(destination.data()),
                                    static_cast<const std::byte*>(source.data()), source.nbytes()});
}

bool resume_program(Program& program, double timeout_s) {
  const auto slice = [&](std::uint64_t ns) { return program.resume(ns) ? std::optional(true) : std::nullopt; };
  return wait_in_slices(slice, timeout_s).has_value();
}

bool run_program(Program& program, double timeout_s) {
  program.begin();
  return resume_program(program, timeout_s);
}

void bind_program(nb::module_& module) {
  nb::class_<Program>(module, "Program")
      .def(nb::init<std::shared_ptr<Window>>(), "window"_a)
      // The arrays themselves, never converted copies, and they live as long as the program.
      .def("add_put", &add_put, "peer"_a, "slot"_a, "destination"_a.noconvert(), "source"_a.noconvert(),
           nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>())
      .def("add_combine", &add_combine<float>, "destinations"_a.noconvert(), "sources"_a.noconvert(),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("add_combine", &add_combine<double>, "destinations"_a.noconvert(), "sources"_a.noconvert(),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def(
          "add_notify",
          [](Program& self, std::uint32_t peer, std::uint32_t slot) { self.add(samovar::NotifyOperation{peer, slot}); },
          "peer"_a, "slot"_a)
      .def(
          "add_wait", [](Program& self, std::uint32_t slot) { self.add(samovar::WaitOperation{slot}); }, "slot"_a)
      .def("run", &run_program, "timeout_s"_a)
      .def("resume", &resume_program, "timeout_s"_a)
      .def("begin", &Program::begin)
      .def("perform_next", &Program::perform_next)
      .def_prop_ro("is_complete", &Program::is_complete)
      .def_prop_ro("steps", &Program::steps)
      .def_prop_ro("position", &Program::position);
  nb::class_<ProgressThread>(module, "ProgressThread")
      .def(nb::init<std::shared_ptr<Segment>, std::uint32_t, std::uint64_t>(), "segment"_a, "rank"_a, "spin_ns"_a)
      // Python owns the programs, and one that ends withdraws. The thread must never need the GIL, not even to release
      // a program: its end could then wait for the thread that waits for its end.
      .def("submit", &ProgressThread::submit, "program"_a)
      .def(
          "wait",
          [](ProgressThread& self, const Program& program, double timeout_s) {
            const auto slice = [&](std::uint64_t ns) { return self.wait(program, ns) ? std::optional(true) : std::nullopt; };
            return wait_in_slices(slice, timeout_s).has_value();
          },
          "program"_a, "timeout_s"_a);
}

void die_with_parent() {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) throw std::system_error(errno, std::generic_category(), "prctl");
}

bool adopt_orphans(bool adopts) {
  int before = 0;
  if (prctl(PR_GET_CHILD_SUBREAPER, &before) != 0 || prctl(PR_SET_CHILD_SUBREAPER, adopts ? 1UL : 0UL) != 0)
    throw std::system_error(errno, std::generic_category(), "prctl");
  return before != 0;
}

void bind_window(nb::module_& module) {
  nb::class_<Window>(module, "Window")
      .def(nb::init<std::shared_ptr<Segment>, std::uint32_t, std::uint64_t, std::uint32_t, std::uint64_t, std::uint64_t>(),
           "segment"_a, "rank"_a, "file_offset"_a, "num_slots"_a, "bytes_per_rank"_a, "spin_ns"_a, WithoutGil())
      .def_static("file_bytes", &Window::file_bytes, "world_size"_a, "num_slots"_a, "bytes_per_rank"_a)
      .def(
          "memory",
          [](nb::object self, std::uint32_t rank) {
            auto& window = nb::cast<Window&>(self);
            return Bytes(reinterpret_cast<std::uint8_t*>(window.memory(rank)), {window.bytes_per_rank()}, self);
          },
          "rank"_a)
      .def(
          "put",
          [](Window& self, std::uint32_t peer, std::uint64_t offset, ConstBuffer source) {
            self.put(peer, offset, source.data(), source.nbytes());
          },
          "peer"_a, "offset_bytes"_a, "source"_a, WithoutGil())
      .def(
          "get",
          [](const Window& self, std::uint32_t peer, std::uint64_t offset, AnyBuffer destination) {
            self.get(peer, offset, destination.data(), destination.nbytes());
          },
          "peer"_a, "offset_bytes"_a, "destination"_a.noconvert(), WithoutGil())
      .def("fetch_add", &Window::fetch_add, "peer"_a, "offset_bytes"_a, "value"_a)
      .def("compare_swap", &Window::compare_swap, "peer"_a, "offset_bytes"_a, "expected"_a, "desired"_a)
      .def("notify", &Window::notify, "peer"_a, "slot"_a, "value"_a)
      .def(
          "wait",
          [](Window& self, std::uint32_t slot, std::uint64_t at_least, double timeout_s) {
            return wait_in_slices([&](std::uint64_t ns) { return self.wait(slot, at_least, ns); }, timeout_s);
          },
          "slot"_a, "at_least"_a, "timeout_s"_a)
      .def(
          "wait_any",
          [](Window& self, std::uint32_t first, std::uint32_t count, double timeout_s) {
            return wait_in_slices([&](std::uint64_t ns) { return self.wait_any(first, count, ns); }, timeout_s);
          },
          "first"_a, "count"_a, "timeout_s"_a);
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "Shared-memory windows, notifications and one-pass kernels.";
  nb::register_exception_translator(raise_os_error);
  // torch keeps tensors over window memory alive to the very end of the interpreter, past nanobind's check.
  nb::set_leak_warnings(false);
  nb::class_<Segment>(module, "Segment")
      .def(nb::init<int, std::uint32_t>(), "fd"_a, "world_size"_a)
      .def_static("head_bytes", &Segment::head_bytes, "world_size"_a)
      .def("post", &Segment::post, "row"_a, "word"_a, "value"_a)
      .def("read", &Segment::read, "row"_a, "word"_a);
  bind_window(module);
  bind_program(module);
  samovar::bind_center(module);
  samovar::bind_codec(module);
  nb::class_<samovar::IdleThreads>(module, "IdleThreads").def(nb::init<unsigned>(), "count"_a);
  samovar::bind_layers(module);
  samovar::bind_solver(module);
  module.def("reduce", &reduce<float>, "destination"_a.noconvert(), "sources"_a.noconvert(), WithoutGil());
  module.def("reduce", &reduce<double>, "destination"_a.noconvert(), "sources"_a.noconvert(), WithoutGil());
  module.def(
      "all_finite", [](Array<const float> values) { return samovar::all_finite(values.data(), values.size()); },
      "values"_a.noconvert(), WithoutGil());
  module.def("elastic_pull", &elastic_pull, "weights"_a.noconvert(), "center"_a.noconvert(),
             "difference"_a.noconvert(), "rate"_a, WithoutGil());
  module.def("elastic_exchange", &elastic_exchange, "weights"_a.noconvert(), "center"_a.noconvert(),
             "difference"_a.noconvert(), "rate"_a, WithoutGil());
  module.def("outer_step", &outer_step, "weights"_a.noconvert(), "center"_a.noconvert(), "velocity"_a.noconvert(),
             "sum"_a.noconvert(), "count"_a, "rate"_a, "momentum"_a, WithoutGil());
  module.def("die_with_parent", &die_with_parent);
  module.def("adopt_orphans", &adopt_orphans, "adopts"_a);
}
