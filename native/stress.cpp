// Stress of the native core for sanitizers: four ranks are threads of one process, there is no Python.
//
//   stress SECONDS SEED     exits 0, or 1 with what was wrong; built and run by tools/sanitize.sh
//
// Every job runs with two ways to map the memory:
//   separate  every rank has a segment and a window of its own, as processes have them. Two mappings of one
//             page hide races from a race detector, so versions and sums tell whether data was whole.
//   shared    all ranks use one window object, that of rank 0, each with a range of its slots. Every byte then
//             has one address, and a race detector knows nothing that orders data but the slots themselves.
// and with two ways to wait: asleep on the doorbell, or spinning, where the slot alone is read.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "kernels.hpp"
#include "program.hpp"
#include "progress.hpp"
#include "solver_kernels.hpp"
#include "stress_center.hpp"
#include "stress_codecs.hpp"
#include "stress_layers.hpp"
#include "stress_updates.hpp"
#include "window.hpp"

namespace {

using samovar::Segment;
using samovar::Window;
using Random = std::mt19937_64;

constexpr std::uint32_t kRanks = 4;
constexpr std::uint32_t kSlots = 17;       // of each rank
constexpr std::size_t kWords = 2100;       // largest block of the ring, more than one block of the kernels
constexpr std::uint64_t kBytes = 1 << 17;  // of each rank
constexpr std::uint64_t kRounds = 150;
constexpr std::uint64_t kTimeoutNs = 30'000'000'000;

[[noreturn]] void fail(const char* what, std::uint64_t rank, std::uint64_t got, std::uint64_t wanted) {
  std::fprintf(stderr, "stress: %s: rank %llu got %llu, not %llu\n", what, static_cast<unsigned long long>(rank),
               static_cast<unsigned long long>(got), static_cast<unsigned long long>(wanted));
  std::_Exit(1);
}

void expect(const char* what, std::uint64_t rank, std::uint64_t got, std::uint64_t wanted) {
  if (got != wanted) fail(what, rank, got, wanted);
}

std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 31)) * 0x9e3779b97f4a7c15u;
  return value ^ (value >> 29);
}

// What one rank sees: the same calls whether its window is its own or shared.
class Rank {
 public:
  Rank(std::shared_ptr<Segment> segment, std::shared_ptr<Window> window, std::uint32_t rank, bool shared,
       std::uint64_t seed)
      : rank(rank),
        random(mixed(seed + rank)),
        segment(std::move(segment)),
        window(std::move(window)),
        shared_(shared) {}

  // Rank and slot, as the window knows them, of slot `slot` of `peer`.
  std::uint32_t home(std::uint32_t peer) const { return shared_ ? 0 : peer; }
  std::uint32_t place(std::uint32_t peer, std::uint32_t slot) const { return peer * kSlots + slot; }

  void put(std::uint32_t peer, std::uint64_t offset, const void* source, std::uint64_t size) {
    window->put(peer, offset, source, size);
  }
  void notify(std::uint32_t peer, std::uint32_t slot, std::uint64_t value) {
    window->notify(home(peer), place(peer, slot), value);
  }
  std::uint64_t wait(std::uint32_t slot, std::uint64_t at_least) {
    const auto seen = window->wait(place(rank, slot), at_least, kTimeoutNs);
    if (!seen) fail("wait ended by its deadline", rank, 0, at_least);
    return *seen;
  }
  bool expires(std::uint32_t slot, std::uint64_t timeout_ns) {
    return !window->wait(place(rank, slot), ~std::uint64_t{0}, timeout_ns).has_value();
  }
  std::pair<std::uint32_t, std::uint64_t> wait_any(std::uint32_t first, std::uint32_t count) {
    const auto fired = window->wait_any(place(rank, first), count, kTimeoutNs);
    if (!fired) fail("wait_any ended by its deadline", rank, 0, 1);
    return {fired->first - place(rank, 0), fired->second};
  }
  template <typename T>
  T* memory(std::uint32_t peer, std::uint64_t offset) const {
    return reinterpret_cast<T*>(window->memory(peer) + offset);
  }

  const std::uint32_t rank;
  Random random;
  const std::shared_ptr<Segment> segment;
  const std::shared_ptr<Window> window;

 private:
  const bool shared_;
};

// No rank continues before all have come; a faster one may be one version ahead.
void meet(Rank& self, std::uint64_t version) {
  for (std::uint32_t peer = 0; peer < kRanks; ++peer) self.notify(peer, self.rank, version);
  for (std::uint32_t peer = 0; peer < kRanks; ++peer) (void)self.wait(peer, version);
}

// Blocks of random size go around: put, notify, check, and tell the sender that the place is free again.
void ring(Rank& self) {
  const std::uint32_t right = (self.rank + 1) % kRanks, left = (self.rank + kRanks - 1) % kRanks;
  std::vector<std::uint64_t> block;
  for (std::uint64_t version = 1; version <= kRounds; ++version) {
    block.assign(3 + self.random() % (kWords - 3), 0);
    block[0] = block.size();
    for (std::size_t i = 2; i < block.size(); ++i) block[1] += block[i] = mixed(version * kRanks + self.rank + i);
    self.put(right, 0, block.data(), block.size() * sizeof(std::uint64_t));
    self.notify(right, 0, version);
    expect("version of a block", self.rank, self.wait(0, version), version);
    const std::uint64_t* seen = self.memory<std::uint64_t>(self.rank, 0);
    std::uint64_t sum = 0;
    for (std::size_t i = 2; i < seen[0]; ++i) {
      expect("word of the ring", self.rank, seen[i], mixed(version * kRanks + left + i));
      sum += seen[i];
    }
    expect("sum of the ring", self.rank, sum, seen[1]);
    self.notify(left, 1, version);
    expect("version of a free place", self.rank, self.wait(1, version), version);
  }
}

// Ranks 2 and 3 produce; this thread and that of rank 1 both consume what comes to rank 0, each value once.
void produce(Rank& self) {
  const std::uint32_t slot = self.rank - 2;
  for (std::uint64_t version = 1; version <= kRounds; ++version) {
    const std::uint64_t payload[2] = {version, mixed(version + self.rank)};
    self.put(0, slot * sizeof(payload), payload, sizeof(payload));
    self.notify(0, slot, version);
    expect("version taken", self.rank, self.wait(0, version), version);
  }
  self.notify(0, self.rank, 1);  // stops one consumer
}

void consume(Rank& self, std::vector<std::uint64_t>& taken) {
  for (auto fired = self.wait_any(0, kRanks); fired.first < 2; fired = self.wait_any(0, kRanks)) {
    const auto [slot, version] = fired;
    const std::uint64_t* payload = self.memory<std::uint64_t>(0, slot * 2 * sizeof(std::uint64_t));
    expect("version of a payload", self.rank, payload[0], version);
    expect("payload", self.rank, payload[1], mixed(version + slot + 2));
    taken.push_back(slot * kRounds + version - 1);
    self.notify(slot + 2, 0, version);
  }
}

// Words that all add to, and a plain word that only the holder of a lock touches.
void count(Rank& self) {
  constexpr std::uint64_t kLock = 8, kGuarded = 16, kSum = 24;
  std::uint64_t sum = 0;
  Window& window = *self.window;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t step = self.random() % 1000;
    sum += step;
    window.fetch_add(1, kSum, step);
    while (window.compare_swap(1, kLock, 0, self.rank + 1) != 0) std::this_thread::yield();
    *self.memory<std::uint64_t>(1, kGuarded) += 1;
    expect("unlock", self.rank, window.compare_swap(1, kLock, self.rank + 1, 0), self.rank + 1);
  }
  window.fetch_add(0, kSum, sum);
  meet(self, 1);
  expect("guarded count", self.rank, *self.memory<std::uint64_t>(1, kGuarded), kRanks * kRounds);
  expect("fetch_add", self.rank, window.fetch_add(1, kSum, 0), window.fetch_add(0, kSum, 0));
}

// Waits that nobody answers end, not early, while others ring the same doorbell.
void expire(Rank& self) {
  for (std::uint64_t round = 1; round <= kRounds / 5; ++round) {
    const std::uint64_t timeout_ns = self.random() % 500'000;
    const auto start = std::chrono::steady_clock::now();
    expect("expired", self.rank, self.expires(kSlots - 1, timeout_ns), 1);
    const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - start;
    expect("waited to the end", self.rank, static_cast<std::uint64_t>(waited.count()) >= timeout_ns, 1);
    self.notify((self.rank + 1) % kRanks, 5, round);
  }
}

// Of many magnitudes, so that another order of additions gives other bits.
float number(std::uint64_t key) {
  const std::uint64_t bits = mixed(key);
  return std::ldexp(static_cast<float>(static_cast<std::int64_t>(bits) >> 40), -20 - static_cast<int>(bits % 16));
}

// A model of kFloats weights, trained by all: the sum of all gradients, then one step, chunk by chunk.
constexpr std::size_t kFloats = 4 * 2100;
constexpr std::size_t kChunk = kFloats / kRanks;
constexpr std::uint64_t kWeightsAt = 0, kHistoryAt = kFloats * sizeof(float);  // in the memory of rank 0
constexpr std::uint64_t kSteps = 12;
const samovar::solver::Row kRows[] = {{0, 5, 0.0f, 0.0f}, {5, 16, 0.125f, 0.0f}, {21, kChunk - 21, 0.0625f, 0.0f}};
const float kRates[] = {0.25f, 0.5f, 0.125f};

float gradient(std::uint32_t rank, std::uint64_t step, std::size_t i) { return number(step * 1000003 + i * 7 + rank); }

// Gradients lie behind the model's place, in each rank's own memory; a chunk's owner changes with the step.
void train(Rank& self) {
  constexpr std::uint64_t kGradientsAt = kHistoryAt;
  std::vector<float> own(kFloats), sum(kChunk);
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    for (std::size_t i = 0; i < kFloats; ++i) own[i] = gradient(self.rank, step, i);
    if (self.rank > 0) self.put(self.rank, kGradientsAt, own.data(), kFloats * sizeof(float));
    // Rank 0's gradients lie where rank 1's model would be: rank 0's own memory holds the model.
    if (self.rank == 0) self.put(1, 0, own.data(), kFloats * sizeof(float));
    meet(self, 2 * step - 1);
    const std::size_t start = (self.rank + step) % kRanks * kChunk;
    std::vector<const float*> sources = {self.memory<const float>(1, 0) + start};
    for (std::uint32_t peer = 1; peer < kRanks; ++peer)
      sources.push_back(self.memory<const float>(peer, kGradientsAt) + start);
    samovar::reduce(sum.data(), sources.data(), sources.size(), kChunk);
    const samovar::solver::Step update = {self.memory<float>(0, kWeightsAt) + start, sum.data(), kRows, kRates,
                                          std::size(kRows), 0.25f};
    samovar::solver::sgd(update, self.memory<float>(0, kHistoryAt) + start, 0.75f);
    meet(self, 2 * step);
  }
}

void check_training(const Window& window) {
  for (std::size_t i = 0; i < kFloats; ++i) {
    const std::size_t place = i % kChunk;
    const std::size_t row = place < 5 ? 0 : place < 21 ? 1 : 2;
    float weight = 0, history = 0;
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      float sum = gradient(0, step, i);
      for (std::uint32_t rank = 1; rank < kRanks; ++rank) sum = sum + gradient(rank, step, i);
      const float total = 0.25f * sum + kRows[row].l2 * weight;
      history = 0.75f * history + kRates[row] * total;
      weight = weight - history;
    }
    const float seen = reinterpret_cast<const float*>(window.memory(0) + kWeightsAt)[i];
    if (std::memcmp(&seen, &weight, sizeof(float)) != 0) fail("bits of a weight", 0, i, 0);
  }
}

// The direct all-reduce as a program, on the floats at `area` of all ranks; its last message to the right
// neighbour carries a tag, which lies behind the floats.
constexpr std::uint64_t kAreaBytes = kFloats * sizeof(float) + 64;

void add_direct_all_reduce(samovar::Program& program, const Rank& self, std::uint32_t area, const std::uint64_t* tag) {
  const std::uint32_t ready_slot = area * 2 * kRanks, done_slot = ready_slot + kRanks;
  const std::uint64_t start = area * kAreaBytes;
  const auto tell = [&](std::uint32_t first_slot, std::uint32_t first_distance) {
    for (std::uint32_t distance = first_distance; distance < kRanks; ++distance) {
      const std::uint32_t peer = (self.rank + distance) % kRanks;
      program.add(samovar::NotifyOperation{self.home(peer), self.place(peer, first_slot + self.rank)});
    }
    for (std::uint32_t peer = 0; peer < kRanks; ++peer)
      if (peer != self.rank) program.add(samovar::WaitOperation{self.place(self.rank, first_slot + peer)});
  };
  tell(ready_slot, 1);
  samovar::CombineOperation sum{{}, {}, kChunk, samovar::Element::kFloat32};
  for (std::uint32_t peer = 0; peer < kRanks; ++peer) {
    sum.destinations.push_back(self.memory<std::byte>(peer, start + self.rank * kChunk * sizeof(float)));
    sum.sources.push_back(sum.destinations.back());
  }
  program.add(std::move(sum));
  const std::uint32_t right = (self.rank + 1) % kRanks;
  program.add(samovar::PutOperation{self.home(right), self.place(right, done_slot + self.rank),
                                    self.memory<std::byte>(right, start + kFloats * sizeof(float)),
                                    reinterpret_cast<const std::byte*>(tag), sizeof(*tag)});
  tell(done_slot, 2);
}

void check_sums(const Rank& self, std::uint32_t area, std::uint64_t step) {
  const float* own = self.memory<float>(self.rank, area * kAreaBytes);
  for (std::size_t i = 0; i < kFloats; ++i) {
    float sum = gradient(0, step, i);
    for (std::uint32_t rank = 1; rank < kRanks; ++rank) sum = sum + gradient(rank, step, i);
    if (std::memcmp(&own[i], &sum, sizeof(float)) != 0) fail("bits of a sum in place", self.rank, i, 0);
  }
  const std::uint64_t left = (self.rank + kRanks - 1) % kRanks;
  expect("tag", self.rank, *self.memory<std::uint64_t>(self.rank, area * kAreaBytes + kFloats * sizeof(float)),
         step * kRanks + left);
}

// Two sums at once on a thread of their own, or one after the other on the rank's.
void sum_in_place(Rank& self, bool in_background) {
  std::uint64_t tags[2];
  std::unique_ptr<samovar::Program> programs[2];
  samovar::ProgressThread progress(self.segment, self.home(self.rank), self.random() % 2 * 50'000);
  for (std::uint32_t area = 0; area < 2; ++area) {
    programs[area] = std::make_unique<samovar::Program>(self.window);
    add_direct_all_reduce(*programs[area], self, area, &tags[area]);
  }
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    for (std::uint32_t area = 0; area < 2; ++area) {
      float* own = self.memory<float>(self.rank, area * kAreaBytes);
      for (std::size_t i = 0; i < kFloats; ++i) own[i] = gradient(self.rank, step + area, i);
      tags[area] = (step + area) * kRanks + self.rank;
      if (in_background) progress.submit(*programs[area]);
    }
    for (std::uint32_t area = 0; area < 2; ++area) {
      samovar::Program& program = *programs[area];
      if (!(in_background ? progress.wait(program, kTimeoutNs) : program.run(kTimeoutNs)))
        fail("program ended by its deadline", self.rank, program.position(), 0);
      check_sums(self, area, step + area);
    }
  }
}

using Job = std::function<void(Rank&)>;

// Every rank in a thread of its own, on a new segment; `check` looks at the memory they leave.
void run(bool shared, std::uint64_t spin_ns, std::uint64_t seed, const Job& job,
         const std::function<void(const Window&)>& check) {
  const int fd = memfd_create("samovar-stress", MFD_CLOEXEC);
  if (fd < 0) fail("memfd_create", 0, 0, 1);
  std::vector<std::shared_ptr<Segment>> segments;
  std::vector<std::shared_ptr<Window>> windows;
  for (std::uint32_t rank = 0; rank < (shared ? 1 : kRanks); ++rank) {
    segments.push_back(std::make_shared<Segment>(fd, kRanks));
    windows.push_back(std::make_shared<Window>(segments.back(), rank, Segment::head_bytes(kRanks), kRanks * kSlots,
                                               kBytes, spin_ns));
  }
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      Rank self(segments[shared ? 0 : rank], windows[shared ? 0 : rank], rank, shared, seed);
      job(self);
    });
  for (std::thread& thread : threads) thread.join();
  check(*windows[0]);
  close(fd);
}

void nothing(const Window&) {}

void hand_out_once(bool shared, std::uint64_t spin_ns, std::uint64_t seed) {
  std::vector<std::uint64_t> taken[2];
  std::shared_ptr<Window> center;
  std::atomic<bool> ready{false};
  const Job job = [&](Rank& self) {
    if (self.rank >= 2) return produce(self);
    if (self.rank == 0) {
      center = self.window;
      ready.store(true);
      return consume(self, taken[0]);
    }
    while (!ready.load()) std::this_thread::yield();
    Rank second(self.segment, center, 0, shared, seed);
    consume(second, taken[1]);
  };
  run(shared, spin_ns, seed, job, nothing);
  std::vector<int> times(2 * kRounds, 0);
  for (const auto& values : taken)
    for (const std::uint64_t value : values) ++times.at(value);
  for (std::size_t value = 0; value < times.size(); ++value) expect("times a value came", value, times[value], 1);
}

void pass(bool shared, std::uint64_t spin_ns, std::uint64_t seed) {
  run(shared, spin_ns, seed, ring, nothing);
  hand_out_once(shared, spin_ns, seed);
  run(shared, spin_ns, seed, count, nothing);
  run(shared, spin_ns, seed, expire, nothing);
  run(shared, spin_ns, seed, train, check_training);
  for (const bool in_background : {false, true})
    run(shared, spin_ns, seed, [=](Rank& self) { sum_in_place(self, in_background); }, nothing);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: stress SECONDS SEED\n");
    return 2;
  }
  const auto stop = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[1]));
  std::uint64_t seed = std::strtoull(argv[2], nullptr, 10), passes = 0;
  do {
    for (const bool shared : {false, true})
      for (const std::uint64_t spin_ns : {0u, 300'000u}) pass(shared, spin_ns, seed + passes);
    if (const char* wrong = stress_layers(seed + passes)) fail(wrong, 0, 0, 1);
    if (const char* wrong = stress_center(seed + passes)) fail(wrong, 0, 0, 1);
    if (const char* wrong = stress_updates(seed + passes)) fail(wrong, 0, 0, 1);
    if (const char* wrong = stress_codecs(seed + passes)) fail(wrong, 0, 0, 1);
    ++passes;
  } while (std::chrono::steady_clock::now() < stop);
  std::printf("stress: %llu passes from seed %llu, all exact\n", static_cast<unsigned long long>(passes),
              static_cast<unsigned long long>(seed));
  return 0;
}
