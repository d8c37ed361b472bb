#include "codec_bindings.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "codec_kernels.hpp"
#include "interpreter.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using samovar::WithoutGil;
using samovar::codec::Kind;

namespace {

template <typename T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

class Codec {
 public:
  explicit Codec(const std::string& name) : kind_(kind_of(name)) {}

  std::size_t message_bytes(std::size_t count) const {
    if (count > std::numeric_limits<std::uint32_t>::max()) throw std::invalid_argument("more than 2^32 - 1 elements");
    return samovar::codec::message_bytes(kind_, count);
  }

  void encode(Array<const float> source, Array<float> residual, Array<std::uint8_t> message) const {
    if (source.size() != residual.size()) throw std::invalid_argument("source and residual must have equal sizes");
    samovar::codec::encode(kind_, source.data(), residual.data(), checked<std::byte>(message, source.size()),
                           source.size());
  }

  void decode(const std::vector<Array<const std::uint8_t>>& messages, Array<float> values, bool adds) const {
    std::vector<const std::byte*> found;
    for (const auto& message : messages) found.push_back(checked<const std::byte>(message, values.size()));
    if (found.empty()) throw std::invalid_argument("decode needs at least one message");
    samovar::codec::decode(kind_, found.data(), found.size(), values.data(), values.size(), adds);
  }

 private:
  static Kind kind_of(const std::string& name) {
    constexpr std::array<std::pair<const char*, Kind>, 5> kNames{{{"bf16", Kind::kBf16},
                                                               {"int8", Kind::kInt8},
                                                               {"int4", Kind::kInt4},
                                                               {"top-k", Kind::kTopK},
                                                               {"1-bit", Kind::kOneBit}}};
    for (const auto& [known, kind] : kNames)
      if (name == known) return kind;
    throw std::invalid_argument("no codec is called " + name);
  }

  template <typename Byte, typename Message>
  Byte* checked(const Message& message, std::size_t count) const {
    if (message.size() != message_bytes(count))
      throw std::invalid_argument("a message of " + std::to_string(count) + " elements has " +
                                  std::to_string(message_bytes(count)) + " bytes, not " +
                                  std::to_string(message.size()));
    if (reinterpret_cast<std::uintptr_t>(message.data()) % alignof(float) != 0)
      throw std::invalid_argument("a message must begin on 4 bytes");
    return reinterpret_cast<Byte*>(message.data());
  }

  Kind kind_;
};

}  // namespace

void samovar::bind_codec(nb::module_& module) {
  nb::class_<Codec>(module, "Codec")
      .def(nb::init<const std::string&>(), "name"_a)
      .def("message_bytes", &Codec::message_bytes, "num_elements"_a)
      .def("encode", &Codec::encode, "source"_a.noconvert(), "residual"_a.noconvert(), "message"_a.noconvert(),
           WithoutGil())
      .def("decode", &Codec::decode, "messages"_a.noconvert(), "values"_a.noconvert(), "adds"_a, WithoutGil());
}
