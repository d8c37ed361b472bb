// The center c that members change together, each at its own speed, as one of them sees it.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>

#include "center_file.hpp"

namespace samovar {

inline constexpr std::uint64_t kNoDeadline = std::numeric_limits<std::uint64_t>::max();

// A newer incarnation has the member's row.
class Fenced : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A chunk would hold what is no finite number. It stays as it was; chunks that came before it are changed.
class NotFinite : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// When an operation gives up between two chunks: at a moment of the monotonic clock, or when it is told to.
struct Patience {
  std::uint64_t deadline_ns;
  const std::atomic<bool>* gives_up = nullptr;
};

// Chunks [first, first + count).
struct ChunkRange {
  std::uint64_t first;
  std::uint64_t count;
};

// Arrays hold the elements of the chunks of a range, `versions` a number for each. Operations return false when their
// patience ended first: the chunks done stay done, and the same call with the same sequence goes on with the others. A
// chunk that has the sequence already, or a later one, is left as it is. One thread at a time may change the center
// through one object; reads may go on beside it. No operation leaves a value in the center that is not finite: it throws
// NotFinite.
class Center {
 public:
  explicit Center(std::shared_ptr<CenterFile> file);
  // Gives the row back.
  ~Center();
  Center(const Center&) = delete;
  Center& operator=(const Center&) = delete;

  // Takes the row `member`. Throws Fenced where its incarnation is newer, std::system_error (EBUSY) where its process
  // lives.
  void attach(std::uint32_t member, std::uint64_t incarnation);
  void detach();

  const CenterFile& file() const { return *file_; }
  std::uint64_t num_elements() const { return file_->shape().num_elements; }
  std::uint64_t num_chunks() const { return file_->num_chunks(); }
  // Lost so far to updates that others finished first.
  std::uint64_t lost_ns() const { return lost_ns_.load(std::memory_order_relaxed); }

  ChunkRange all() const { return {0, num_chunks()}; }

  // c, or v, = values; versions stay. Without a row, and without locks, where the chunks are: for the start alone.
  bool write(ChunkRange range, const float* values, bool is_velocity, Patience patience);
  bool read(ChunkRange range, float* destination, bool is_velocity, std::int64_t* versions, Patience patience) const;
  // c += d; with momentum m: v = m v + d, c += v.
  bool accumulate(ChunkRange range, std::uint64_t sequence, const float* difference, float momentum,
                  std::int64_t* versions, Patience patience);
  // d = rate (x - c); x -= d; c += d. A chunk's x changes when its c has changed, in one call or, after one that gave
  // up, in the next: never twice, never once of the two.
  bool exchange(ChunkRange range, std::uint64_t sequence, float* weights, float rate, std::int64_t* versions,
                Patience patience);
  // The same with x - d in `moved`, before c shows the change. So `moved` survives a death with every change of c.
  // Chunks that hold the sequence leave `moved` as it is.
  bool exchange_into(ChunkRange range, std::uint64_t sequence, const float* weights, float* moved, float rate,
                     std::int64_t* versions, Patience patience);

  // What the chunk holds of a member: its last incarnation, sequence and the version that update made.
  CenterEntry entry(std::uint64_t chunk, std::uint32_t member) const;

 private:
  struct Update;
  struct Accumulate;
  struct Exchange;
  struct ExchangeInto;

  bool update(Update& update, ChunkRange range, std::uint64_t sequence, std::int64_t* versions, Patience patience);
  std::int64_t update_chunk(Update& update, std::uint64_t sequence, std::uint64_t chunk, Patience patience);
  std::int64_t change_in_place(Update& update, std::uint64_t sequence, std::uint64_t chunk);
  std::int64_t try_swap(Update& update, std::uint64_t sequence, std::uint64_t chunk);
  bool try_write(std::uint64_t chunk, const float* values, bool is_velocity);
  std::uint64_t fill_spare_head(std::uint32_t slot, CenterEntry own, std::uint64_t version);
  bool swap(std::uint64_t chunk, std::uint64_t word, std::uint64_t stamp);
  bool holds(const CenterEntry& entry, std::uint64_t sequence) const;
  void recover_spare();
  void check_row() const;

  std::shared_ptr<CenterFile> file_;
  CenterRow* row_ = nullptr;
  std::uint32_t member_ = 0;
  std::uint64_t incarnation_ = 0;
  std::uint64_t name_ = 0;
  std::atomic<std::uint64_t> lost_ns_{0};
};

}  // namespace samovar
