#include "center_bindings.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>

#include "center.hpp"
#include "center_board.hpp"
#include "center_queue.hpp"
#include "interpreter.hpp"
#include "waiting.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using samovar::Center;
using samovar::CenterBoard;
using samovar::CenterFile;
using samovar::CenterQueue;
using samovar::CenterShape;
using samovar::ChunkRange;
using samovar::WithoutGil;

namespace {

template <typename T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Versions = Array<std::int64_t>;
using Post = std::array<std::uint64_t, samovar::kPostWords>;

constexpr std::uint64_t kCloseNs = 60'000'000'000;

// Only one operation of the member at a time changes the center.
class Turn {
 public:
  Turn(CenterQueue& queue, std::uint64_t timeout_ns) : queue_(queue), is_mine_(queue.enter(timeout_ns)) {}
  ~Turn() {
    if (is_mine_) queue_.leave();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  bool is_mine() const { return is_mine_; }

 private:
  CenterQueue& queue_;
  const bool is_mine_;
};

samovar::Patience patience_of(double timeout_s) {
  return {samovar::monotonic_ns() + samovar::nanoseconds(timeout_s)};
}

// A center and its thread, with every array's size checked. The child of a fork has no such thread: there it waits for
// nothing, and changes nothing.
class Attached {
 public:
  explicit Attached(int fd)
      : center_(std::make_shared<Center>(std::make_shared<CenterFile>(fd))),
        queue_(std::make_unique<CenterQueue>(center_)) {}
  ~Attached() {
    if (is_forked()) (void)queue_.release();
  }
  Attached(const Attached&) = delete;
  Attached& operator=(const Attached&) = delete;

  const CenterShape& shape() const { return center_->file().shape(); }
  std::uint64_t num_chunks() const { return center_->num_chunks(); }
  double lost_s() const { return static_cast<double>(center_->lost_ns()) * 1e-9; }
  void attach(std::uint32_t member, std::uint64_t incarnation) { center_->attach(member, incarnation); }

  // The thread ends first, then what another thread is at: nothing changes the center when the row is given back.
  void close() {
    if (is_forked()) return;
    queue_->stop();
    const Turn turn(*queue_, kCloseNs);
    if (turn.is_mine()) center_->detach();
  }

  bool write(std::uint64_t first_chunk, Array<const float> values, bool is_velocity, double timeout_s) {
    const ChunkRange range = range_of(first_chunk, values, is_velocity);
    return in_turn(timeout_s, [&](samovar::Patience patience) {
      return center_->write(range, values.data(), is_velocity, patience);
    });
  }
  bool read(std::uint64_t first_chunk, Array<float> destination, bool is_velocity, Versions versions,
            double timeout_s) const {
    const ChunkRange range = range_of(first_chunk, destination, is_velocity, versions);
    return center_->read(range, destination.data(), is_velocity, versions.data(), patience_of(timeout_s));
  }
  bool accumulate(std::uint64_t first_chunk, std::uint64_t sequence, Array<const float> difference, float momentum,
                  Versions versions, double timeout_s) {
    const ChunkRange range = range_of(first_chunk, difference, false, versions);
    return in_turn(timeout_s, [&](samovar::Patience patience) {
      return center_->accumulate(range, sequence, difference.data(), momentum, versions.data(), patience);
    });
  }
  bool exchange(std::uint64_t first_chunk, std::uint64_t sequence, Array<float> weights, float rate, Versions versions,
                double timeout_s) {
    const ChunkRange range = range_of(first_chunk, weights, false, versions);
    return in_turn(timeout_s, [&](samovar::Patience patience) {
      return center_->exchange(range, sequence, weights.data(), rate, versions.data(), patience);
    });
  }
  bool exchange_into(std::uint64_t first_chunk, std::uint64_t sequence, Array<const float> weights, Array<float> moved,
                     float rate, Versions versions, double timeout_s) {
    const ChunkRange range = range_of(first_chunk, weights, false, versions);
    if (moved.size() != weights.size()) throw std::invalid_argument("weights and moved must have equal sizes");
    return in_turn(timeout_s, [&](samovar::Patience patience) {
      return center_->exchange_into(range, sequence, weights.data(), moved.data(), rate, versions.data(), patience);
    });
  }
  std::uint64_t submit(std::uint64_t sequence, Array<const float> difference, float momentum) {
    if (range_of(0, difference, false).count != num_chunks())
      throw std::invalid_argument("the center has " + std::to_string(shape().num_elements) + " elements, the array " +
                                  std::to_string(difference.size()));
    check_process();
    return queue_->submit(sequence, difference.data(), momentum);
  }
  bool wait(std::uint64_t ticket, Versions versions, double timeout_s) {
    check(versions, num_chunks());
    check_process();
    const auto slice = [&](std::uint64_t ns) { return queue_->wait(ticket, ns); };
    const auto found = samovar::wait_in_slices(slice, timeout_s);
    if (found) std::copy(found->begin(), found->end(), versions.data());
    return found.has_value();
  }
  std::tuple<std::uint64_t, std::uint64_t, std::uint64_t> entry(std::uint64_t chunk, std::uint32_t member) const {
    const samovar::CenterEntry found = center_->entry(chunk, member);
    return {found.incarnation, found.sequence, found.version};
  }

 private:
  bool is_forked() const { return process_ != getpid(); }
  void check_process() const {
    if (is_forked()) throw samovar::Fenced("the member of the center is the process that this one was forked from");
  }
  template <typename Operation>
  bool in_turn(double timeout_s, Operation operation) {
    check_process();
    const samovar::Patience patience = patience_of(timeout_s);
    const Turn turn(*queue_, samovar::nanoseconds(timeout_s));
    return turn.is_mine() && operation(patience);
  }
  // Whole chunks, as many as the array is long; the center's last one may be shorter.
  template <typename T>
  ChunkRange range_of(std::uint64_t first_chunk, const Array<T>& array, bool is_velocity) const {
    if (is_velocity && !shape().has_velocity) throw std::invalid_argument("the center has no velocity");
    if (first_chunk >= num_chunks()) throw std::out_of_range("no such chunk: " + std::to_string(first_chunk));
    const std::uint64_t left = shape().num_elements - first_chunk * shape().chunk_elements;
    const std::uint64_t size = array.size(), chunk = shape().chunk_elements;
    if (size == 0 || size > left || (size != left && size % chunk != 0))
      throw std::invalid_argument("the center has " + std::to_string(left) + " elements in chunks of " +
                                  std::to_string(chunk) + " there, the array " + std::to_string(size));
    return {first_chunk, (size + chunk - 1) / chunk};
  }
  template <typename T>
  ChunkRange range_of(std::uint64_t first_chunk, const Array<T>& array, bool is_velocity,
                      const Versions& versions) const {
    const ChunkRange range = range_of(first_chunk, array, is_velocity);
    check(versions, range.count);
    return range;
  }
  static void check(const Versions& versions, std::uint64_t count) {
    if (versions.size() != count)
      throw std::invalid_argument("there are " + std::to_string(count) + " chunks, not " +
                                  std::to_string(versions.size()));
  }

  std::shared_ptr<Center> center_;
  std::unique_ptr<CenterQueue> queue_;
  const pid_t process_ = getpid();
};

// Under names that say what is meant: an error of the file is a ValueError, a row that another has an OSError.
void bind_attached(nb::module_& module) {
  nb::exception<samovar::Fenced>(module, "Fenced", PyExc_RuntimeError);
  nb::exception<samovar::NotFinite>(module, "NotFinite", PyExc_RuntimeError);
  nb::class_<Attached>(module, "Center")
      .def(nb::init<int>(), "fd"_a)
      .def_static(
          "create",
          [](int fd, std::uint64_t num_elements, std::uint64_t chunk_elements, std::uint32_t max_members,
             bool has_velocity, bool has_locks, bool takes_any) {
            CenterFile::create(fd, {num_elements, chunk_elements, max_members, has_velocity, has_locks, takes_any});
          },
          "fd"_a, "num_elements"_a, "chunk_elements"_a, "max_members"_a, "has_velocity"_a, "has_locks"_a,
          "takes_any"_a = false, WithoutGil())
      .def_prop_ro("num_elements", [](const Attached& self) { return self.shape().num_elements; })
      .def_prop_ro("chunk_elements", [](const Attached& self) { return self.shape().chunk_elements; })
      .def_prop_ro("num_chunks", &Attached::num_chunks)
      .def_prop_ro("max_members", [](const Attached& self) { return self.shape().max_members; })
      .def_prop_ro("has_velocity", [](const Attached& self) { return self.shape().has_velocity; })
      .def_prop_ro("has_locks", [](const Attached& self) { return self.shape().has_locks; })
      .def_prop_ro("takes_any", [](const Attached& self) { return self.shape().takes_any; })
      .def_prop_ro("lost_s", &Attached::lost_s)
      .def("attach", &Attached::attach, "member"_a, "incarnation"_a, WithoutGil())
      .def("close", &Attached::close)
      .def("write", &Attached::write, "first_chunk"_a, "values"_a.noconvert(), "is_velocity"_a, "timeout_s"_a = 60.0,
           WithoutGil())
      .def("read", &Attached::read, "first_chunk"_a, "destination"_a.noconvert(), "is_velocity"_a,
           "versions"_a.noconvert(), "timeout_s"_a, WithoutGil())
      .def("accumulate", &Attached::accumulate, "first_chunk"_a, "sequence"_a, "difference"_a.noconvert(), "momentum"_a,
           "versions"_a.noconvert(), "timeout_s"_a, WithoutGil())
      .def("exchange", &Attached::exchange, "first_chunk"_a, "sequence"_a, "weights"_a.noconvert(), "rate"_a,
           "versions"_a.noconvert(), "timeout_s"_a, WithoutGil())
      .def("exchange_into", &Attached::exchange_into, "first_chunk"_a, "sequence"_a, "weights"_a.noconvert(),
           "moved"_a.noconvert(), "rate"_a, "versions"_a.noconvert(), "timeout_s"_a, WithoutGil())
      .def("submit", &Attached::submit, "sequence"_a, "difference"_a.noconvert(), "momentum"_a)
      .def("wait", &Attached::wait, "ticket"_a, "versions"_a.noconvert(), "timeout_s"_a)
      .def("entry", &Attached::entry, "chunk"_a, "member"_a);
}

void bind_words(nb::class_<CenterBoard>& board) {
  board.def("word", [](const CenterBoard& self, std::uint32_t word) { return self.shared(word).load(); }, "word"_a)
      .def(
          "set_word",
          [](CenterBoard& self, std::uint32_t word, std::uint64_t value) { self.shared(word).store(value); }, "word"_a,
          "value"_a)
      .def(
          "claim_word",
          [](CenterBoard& self, std::uint32_t word, std::uint64_t value) {
            std::uint64_t found = 0;
            return self.shared(word).compare_exchange_strong(found, value) ? value : found;
          },
          "word"_a, "value"_a);
}

void bind_board(nb::module_& module) {
  nb::class_<CenterBoard> board(module, "CenterBoard");
  bind_words(board);
  board.def(nb::init<int>(), "fd"_a)
      .def_static("create", &CenterBoard::create, "fd"_a, "max_members"_a)
      .def_prop_ro("max_members", &CenterBoard::max_members)
      .def(
          "seen",
          [](const CenterBoard& self, std::uint32_t index) {
            const samovar::OwnerSeen seen = self.seen(index);
            return std::tuple(seen.incarnation, seen.process_id, seen.is_alive);
          },
          "index"_a)
      .def("join", &CenterBoard::join, "index"_a)
      .def("resume", &CenterBoard::resume, "index"_a, "incarnation"_a)
      .def("leave", &CenterBoard::leave, "index"_a, "incarnation"_a)
      .def(
          "post",
          [](CenterBoard& self, std::uint32_t index, std::uint64_t incarnation, const Post& words) {
            return self.post(index, incarnation, words.data());
          },
          "index"_a, "incarnation"_a, "words"_a)
      .def(
          "read",
          [](const CenterBoard& self, std::uint32_t index) {
            Post words{};
            self.read(index, words.data());
            return words;
          },
          "index"_a);
}

}  // namespace

void samovar::bind_center(nb::module_& module) {
  bind_attached(module);
  bind_board(module);
}
