// One-sided communication between the processes of one machine.
//
// A segment is an anonymous memory file (memfd) that every rank maps. Its head holds one doorbell and one
// board row per rank; windows follow it, each with notification slots and memory for every rank.
//
// Visibility: all data that a rank put before notify() is visible to a rank whose wait() returned that
// notification (store-release on the slot, load-acquire in the wait).
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace samovar {

inline constexpr std::uint64_t kSegmentMagic = 0x53414d4f56415231;  // "SAMOVAR1"
inline constexpr std::size_t kLineBytes = 64;
// The system's: 4 KiB, on some ARM kernels 16 or 64. A mapping begins at a multiple of it.
inline const std::size_t kPageBytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
inline constexpr std::size_t kBoardWords = 8;

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// The sleeper count lets a notifier skip the system call while nobody sleeps.
struct alignas(kLineBytes) Doorbell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleepers;
};

struct alignas(kLineBytes) BoardRow {
  std::atomic<std::uint64_t> words[kBoardWords];
};

struct alignas(kLineBytes) Slot {
  std::atomic<std::uint64_t> value;
};

std::uint64_t monotonic_ns();

// Growing only: safe from every rank at once, and a full tmpfs fails here instead of as SIGBUS later.
void grow_file(int fd, std::uint64_t offset, std::uint64_t size);

// A range of a file mapped shared; unmapped when the last owner goes.
class Mapping {
 public:
  Mapping(int fd, std::size_t offset, std::size_t size);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  void prefault(std::size_t offset, std::size_t size) const;
  // Give its memory, and that of the file behind it, back to the system.
  void discard() const;

 private:
  std::byte* data_;
  std::size_t size_;
};

// The head of a segment: doorbells, and the board on which every rank and the launcher post numbers.
class Segment {
 public:
  Segment(int fd, std::uint32_t world_size);

  static std::size_t head_bytes(std::uint32_t world_size);

  std::uint32_t world_size() const { return world_size_; }
  int fd() const { return fd_; }
  // Row `world_size` belongs to the launcher.
  void post(std::uint32_t row, std::uint32_t word, std::uint64_t value);
  std::uint64_t read(std::uint32_t row, std::uint32_t word) const;
  Doorbell& doorbell(std::uint32_t rank) const;
  void ring(std::uint32_t rank) const;
  // How often the rank's bell rang; and: sleep until it is another number than `seen`.
  std::uint32_t rings(std::uint32_t rank) const;
  void wait_ring(std::uint32_t rank, std::uint32_t seen, std::uint64_t spin_ns, std::uint64_t timeout_ns) const;

 private:
  std::atomic<std::uint64_t>& word_at(std::uint32_t row, std::uint32_t word) const;

  int fd_;
  std::uint32_t world_size_;
  std::unique_ptr<Mapping> mapping_;
};

// `num_slots` notification slots and `bytes_per_rank` bytes for each rank, reachable by all.
//
// Its memory goes back to the system when every rank has let go of it. Then none can read it any more, so no rank waits
// for another. Its place in the file is not used again: a rank could reach a new window there before another rank has
// let go of the old one. The file gets longer, but only windows in use take memory.
class Window {
 public:
  // Grows the file where needed: every rank may do so, in any order. Throws std::invalid_argument if
  // another rank opened this place with other sizes, std::system_error if memory is short.
  Window(std::shared_ptr<Segment> segment, std::uint32_t rank, std::uint64_t file_offset,
         std::uint32_t num_slots, std::uint64_t bytes_per_rank, std::uint64_t spin_ns);

  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  static std::uint64_t file_bytes(std::uint32_t world_size, std::uint32_t num_slots,
                                  std::uint64_t bytes_per_rank);

  std::uint32_t rank() const { return rank_; }
  std::uint32_t world_size() const { return segment_->world_size(); }
  std::uint64_t bytes_per_rank() const { return bytes_per_rank_; }
  std::byte* memory(std::uint32_t rank) const;

  void put(std::uint32_t peer, std::uint64_t offset, const void* source, std::uint64_t size);
  void get(std::uint32_t peer, std::uint64_t offset, void* destination, std::uint64_t size) const;
  std::uint64_t fetch_add(std::uint32_t peer, std::uint64_t offset, std::uint64_t value);
  // Returns the old value; stored only if that equals `expected`.
  std::uint64_t compare_swap(std::uint32_t peer, std::uint64_t offset, std::uint64_t expected,
                             std::uint64_t desired);

  // Throws std::out_of_range for a rank or a slot that there is not.
  void check_slot(std::uint32_t rank, std::uint32_t slot) const { slot_at(rank, slot); }
  void notify(std::uint32_t peer, std::uint32_t slot, std::uint64_t value);
  // The own slot's value, without waiting; what was put before it was set is visible.
  std::uint64_t slot(std::uint32_t slot) const;
  // Waits until the own slot holds at least `at_least`; empty when `timeout_ns` passed first.
  std::optional<std::uint64_t> wait(std::uint32_t slot, std::uint64_t at_least, std::uint64_t timeout_ns);
  // Waits until one of the own slots [first, first + count) is not 0, resets it to 0, returns it.
  std::optional<std::pair<std::uint32_t, std::uint64_t>> wait_any(std::uint32_t first, std::uint32_t count,
                                                                  std::uint64_t timeout_ns);

 private:
  Slot& slot_at(std::uint32_t rank, std::uint32_t slot) const;
  std::atomic<std::uint64_t>& atomic_at(std::uint32_t peer, std::uint64_t offset) const;
  void check_range(std::uint32_t peer, std::uint64_t offset, std::uint64_t size) const;
  void agree_on_sizes() const;
  std::atomic<std::uint32_t>& life_of(std::uint32_t rank) const;
  template <typename Ready>
  bool wait_until(Ready ready, std::uint64_t timeout_ns);

  std::shared_ptr<Segment> segment_;
  std::uint32_t rank_;
  std::uint32_t num_slots_;
  std::uint64_t bytes_per_rank_;
  std::uint64_t spin_ns_;
  int process_;  // the one that opened it: its children have the object too, and let go of nothing
  std::unique_ptr<Mapping> mapping_;
};

}  // namespace samovar
