#include "window.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace samovar {
namespace {

// Sizes up to here can be rounded and added up without overflow.
constexpr std::uint64_t kLargestFileBytes = std::uint64_t{1} << 62;

struct alignas(kLineBytes) WindowHeader {
  std::atomic<std::uint64_t> num_slots_plus_one;
  std::atomic<std::uint64_t> bytes_per_rank_plus_one;
  std::atomic<std::uint32_t> num_gone;  // ranks that have let go of it
};

// A rank's, after the header. A rank that comes back after its death has it again.
enum Life : std::uint32_t { kNever, kOpen, kGone };

struct alignas(kLineBytes) SegmentHeader {
  std::atomic<std::uint64_t> magic;
  std::atomic<std::uint64_t> world_size;
};

std::uint64_t rounded_up(std::uint64_t size, std::uint64_t unit) { return (size + unit - 1) / unit * unit; }

// Header, the lives of ranks and the slots.
std::uint64_t lives_end(std::uint32_t world_size) {
  return rounded_up(sizeof(WindowHeader) + std::uint64_t{world_size} * sizeof(std::uint32_t), kLineBytes);
}

std::uint64_t slots_end(std::uint32_t world_size, std::uint32_t num_slots) {
  return rounded_up(lives_end(world_size) + std::uint64_t{world_size} * num_slots * sizeof(Slot), kPageBytes);
}

WindowHeader& header_of(const Mapping& mapping) { return *reinterpret_cast<WindowHeader*>(mapping.data()); }

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Shared (not private) futex: the word lies in a mapping of several processes.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::uint64_t timeout_ns) {
  timespec timeout{static_cast<time_t>(timeout_ns / 1'000'000'000u), static_cast<long>(timeout_ns % 1'000'000'000u)};
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool claim(std::atomic<std::uint64_t>& word, std::uint64_t value) {
  std::uint64_t expected = 0;
  return word.compare_exchange_strong(expected, value) || expected == value;
}

}  // namespace

std::uint64_t monotonic_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(time.tv_nsec);
}

void grow_file(int fd, std::uint64_t offset, std::uint64_t size) {
  int error = 0;
  do {
    error = posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(size));
  } while (error == EINTR);
  if (error != 0) throw std::system_error(error, std::generic_category(), "shared memory cannot be allocated");
}

Mapping::Mapping(int fd, std::size_t offset, std::size_t size) : data_(nullptr), size_(size) {
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (address == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "shared memory cannot be mapped");
  data_ = static_cast<std::byte*>(address);
}

Mapping::~Mapping() { munmap(data_, size_); }

void Mapping::prefault(std::size_t offset, std::size_t size) const {
  // Advice only: where the kernel refuses it, pages fault in at first touch.
  const std::size_t start = offset / kPageBytes * kPageBytes;
  const std::size_t stop = std::min(size_, rounded_up(offset + size, kPageBytes));
  madvise(data_ + start, stop - start, MADV_HUGEPAGE);
#if defined(MADV_POPULATE_WRITE)
  madvise(data_ + start, stop - start, MADV_POPULATE_WRITE);
#endif
}

void Mapping::discard() const { madvise(data_, size_, MADV_REMOVE); }

std::size_t Segment::head_bytes(std::uint32_t world_size) {
  const std::size_t rows = static_cast<std::size_t>(world_size) + 1;
  return rounded_up(sizeof(SegmentHeader) + rows * (sizeof(Doorbell) + sizeof(BoardRow)), kPageBytes);
}

Segment::Segment(int fd, std::uint32_t world_size) : fd_(fd), world_size_(world_size) {
  if (world_size == 0) throw std::invalid_argument("a segment needs at least one rank");
  grow_file(fd, 0, head_bytes(world_size));
  mapping_ = std::make_unique<Mapping>(fd, 0, head_bytes(world_size));
  auto& header = *reinterpret_cast<SegmentHeader*>(mapping_->data());
  if (!claim(header.magic, kSegmentMagic)) throw std::invalid_argument("the descriptor is not a Samovar segment");
  if (!claim(header.world_size, world_size))
    throw std::invalid_argument("the segment was made for " + std::to_string(header.world_size.load()) +
                                " ranks, not for " + std::to_string(world_size));
}

Doorbell& Segment::doorbell(std::uint32_t rank) const {
  if (rank > world_size_) throw std::out_of_range("no such rank: " + std::to_string(rank));
  return reinterpret_cast<Doorbell*>(mapping_->data() + sizeof(SegmentHeader))[rank];
}

std::atomic<std::uint64_t>& Segment::word_at(std::uint32_t row, std::uint32_t word) const {
  if (row > world_size_ || word >= kBoardWords)
    throw std::out_of_range("no such board word: row " + std::to_string(row) + ", word " + std::to_string(word));
  std::byte* rows = mapping_->data() + sizeof(SegmentHeader) + (world_size_ + 1) * sizeof(Doorbell);
  return reinterpret_cast<BoardRow*>(rows)[row].words[word];
}

void Segment::post(std::uint32_t row, std::uint32_t word, std::uint64_t value) {
  word_at(row, word).store(value, std::memory_order_release);
}

std::uint64_t Segment::read(std::uint32_t row, std::uint32_t word) const {
  return word_at(row, word).load(std::memory_order_acquire);
}

void Segment::ring(std::uint32_t rank) const {
  Doorbell& bell = doorbell(rank);
  // Sequentially consistent on both sides: either the sleeper is seen here, or the ring is seen there.
  bell.rings.fetch_add(1);
  if (bell.sleepers.load() != 0) futex_wake_all(bell.rings);
}

std::uint32_t Segment::rings(std::uint32_t rank) const { return doorbell(rank).rings.load(); }

void Segment::wait_ring(std::uint32_t rank, std::uint32_t seen, std::uint64_t spin_ns, std::uint64_t timeout_ns) const {
  Doorbell& bell = doorbell(rank);
  const std::uint64_t start = monotonic_ns();
  while (monotonic_ns() - start < spin_ns) {
    if (bell.rings.load() != seen) return;
    relax();
  }
  bell.sleepers.fetch_add(1);
  futex_wait(bell.rings, seen, timeout_ns);
  bell.sleepers.fetch_sub(1);
}

std::uint64_t Window::file_bytes(std::uint32_t world_size, std::uint32_t num_slots, std::uint64_t bytes_per_rank) {
  return slots_end(world_size, num_slots) + world_size * rounded_up(bytes_per_rank, kPageBytes);
}

Window::Window(std::shared_ptr<Segment> segment, std::uint32_t rank, std::uint64_t file_offset,
               std::uint32_t num_slots, std::uint64_t bytes_per_rank, std::uint64_t spin_ns)
    : segment_(std::move(segment)),
      rank_(rank),
      num_slots_(num_slots),
      bytes_per_rank_(bytes_per_rank),
      spin_ns_(spin_ns),
      process_(getpid()) {
  if (rank >= world_size()) throw std::out_of_range("no such rank: " + std::to_string(rank));
  if (bytes_per_rank > kLargestFileBytes / world_size())
    throw std::system_error(EFBIG, std::generic_category(), "shared memory cannot be allocated");
  const std::uint64_t size = file_bytes(world_size(), num_slots, bytes_per_rank);
  // A page of the file is in the NUMA node of the process that allocates it, so every rank allocates its own part. The
  // last page gives the file its size: parts of later ranks are mapped, and take memory when they are touched.
  grow_file(segment_->fd(), file_offset + size - kPageBytes, kPageBytes);
  mapping_ = std::make_unique<Mapping>(segment_->fd(), file_offset, size);
  agree_on_sizes();
  if (life_of(rank).exchange(kOpen) == kGone) header_of(*mapping_).num_gone.fetch_sub(1);
  if (bytes_per_rank == 0) return;
  const auto own = static_cast<std::uint64_t>(memory(rank) - mapping_->data());
  grow_file(segment_->fd(), file_offset + own, bytes_per_rank);
  mapping_->prefault(static_cast<std::size_t>(own), bytes_per_rank);
}

Window::~Window() {
  // A constructor that threw has no object to destroy: its rank never opened the window.
  if (process_ != getpid() || life_of(rank_).exchange(kGone) == kGone) return;
  // Only the last rank touches the memory after it is counted: a touch of given back memory would take a page again.
  if (header_of(*mapping_).num_gone.fetch_add(1) + 1 == world_size()) mapping_->discard();
}

std::atomic<std::uint32_t>& Window::life_of(std::uint32_t rank) const {
  return reinterpret_cast<std::atomic<std::uint32_t>*>(mapping_->data() + sizeof(WindowHeader))[rank];
}

void Window::agree_on_sizes() const {
  auto& header = header_of(*mapping_);
  if (claim(header.num_slots_plus_one, num_slots_ + 1ull) && claim(header.bytes_per_rank_plus_one, bytes_per_rank_ + 1))
    return;
  throw std::invalid_argument(
      "another rank opened this window with other sizes (" + std::to_string(header.num_slots_plus_one.load() - 1) +
      " slots, " + std::to_string(header.bytes_per_rank_plus_one.load() - 1) + " bytes) than this one (" +
      std::to_string(num_slots_) + " slots, " + std::to_string(bytes_per_rank_) + " bytes)");
}

std::byte* Window::memory(std::uint32_t rank) const {
  if (rank >= world_size()) throw std::out_of_range("no such rank: " + std::to_string(rank));
  return mapping_->data() + slots_end(world_size(), num_slots_) + rank * rounded_up(bytes_per_rank_, kPageBytes);
}

Slot& Window::slot_at(std::uint32_t rank, std::uint32_t slot) const {
  if (rank >= world_size() || slot >= num_slots_)
    throw std::out_of_range("no such slot: rank " + std::to_string(rank) + ", slot " + std::to_string(slot) + " of " +
                            std::to_string(num_slots_));
  auto* slots = reinterpret_cast<Slot*>(mapping_->data() + lives_end(world_size()));
  return slots[static_cast<std::uint64_t>(rank) * num_slots_ + slot];
}

void Window::check_range(std::uint32_t peer, std::uint64_t offset, std::uint64_t size) const {
  if (peer >= world_size() || offset > bytes_per_rank_ || size > bytes_per_rank_ - offset)
    throw std::out_of_range("bytes " + std::to_string(offset) + " + " + std::to_string(size) + " of rank " +
                            std::to_string(peer) + " lie outside the window (" + std::to_string(world_size()) +
                            " ranks, " + std::to_string(bytes_per_rank_) + " bytes each)");
}

std::atomic<std::uint64_t>& Window::atomic_at(std::uint32_t peer, std::uint64_t offset) const {
  check_range(peer, offset, sizeof(std::uint64_t));
  if (offset % sizeof(std::uint64_t) != 0)
    throw std::invalid_argument("an atomic needs an offset divisible by 8, got " + std::to_string(offset));
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(memory(peer) + offset);
}

void Window::put(std::uint32_t peer, std::uint64_t offset, const void* source, std::uint64_t size) {
  check_range(peer, offset, size);
  if (size > 0) std::memcpy(memory(peer) + offset, source, size);
}

void Window::get(std::uint32_t peer, std::uint64_t offset, void* destination, std::uint64_t size) const {
  check_range(peer, offset, size);
  if (size > 0) std::memcpy(destination, memory(peer) + offset, size);
}

std::uint64_t Window::fetch_add(std::uint32_t peer, std::uint64_t offset, std::uint64_t value) {
  return atomic_at(peer, offset).fetch_add(value);
}

std::uint64_t Window::compare_swap(std::uint32_t peer, std::uint64_t offset, std::uint64_t expected,
                                   std::uint64_t desired) {
  atomic_at(peer, offset).compare_exchange_strong(expected, desired);
  return expected;
}

void Window::notify(std::uint32_t peer, std::uint32_t slot, std::uint64_t value) {
  slot_at(peer, slot).value.store(value, std::memory_order_release);
  segment_->ring(peer);
}

std::uint64_t Window::slot(std::uint32_t slot) const {
  return slot_at(rank_, slot).value.load(std::memory_order_acquire);
}

template <typename Ready>
bool Window::wait_until(Ready ready, std::uint64_t timeout_ns) {
  if (ready()) return true;
  const std::uint64_t start = monotonic_ns();
  const std::uint64_t spin = std::min(spin_ns_, timeout_ns);
  while (monotonic_ns() - start < spin) {
    if (ready()) return true;
    relax();
  }
  Doorbell& bell = segment_->doorbell(rank_);
  bell.sleepers.fetch_add(1);
  bool done = false;
  for (std::uint64_t waited = monotonic_ns() - start; waited < timeout_ns; waited = monotonic_ns() - start) {
    const std::uint32_t rings = bell.rings.load();
    if ((done = ready())) break;
    futex_wait(bell.rings, rings, timeout_ns - waited);
  }
  bell.sleepers.fetch_sub(1);
  return done || ready();
}

std::optional<std::uint64_t> Window::wait(std::uint32_t slot, std::uint64_t at_least, std::uint64_t timeout_ns) {
  const std::atomic<std::uint64_t>& value = slot_at(rank_, slot).value;
  std::uint64_t seen = 0;
  const bool fired = wait_until([&] { return (seen = value.load(std::memory_order_acquire)) >= at_least; }, timeout_ns);
  return fired ? std::optional(seen) : std::nullopt;
}

std::optional<std::pair<std::uint32_t, std::uint64_t>> Window::wait_any(std::uint32_t first, std::uint32_t count,
                                                                        std::uint64_t timeout_ns) {
  if (count == 0 || first >= num_slots_ || count > num_slots_ - first)
    throw std::out_of_range("slots " + std::to_string(first) + " + " + std::to_string(count) + " of " +
                            std::to_string(num_slots_));
  std::pair<std::uint32_t, std::uint64_t> found{0, 0};
  const bool fired = wait_until(
      [&] {
        for (std::uint32_t slot = first; slot < first + count; ++slot) {
          std::atomic<std::uint64_t>& value = slot_at(rank_, slot).value;
          if (value.load(std::memory_order_relaxed) == 0) continue;
          found = {slot, value.exchange(0, std::memory_order_acq_rel)};
          if (found.second != 0) return true;
        }
        return false;
      },
      timeout_ns);
  return fired ? std::optional(found) : std::nullopt;
}

}  // namespace samovar
