// Members are threads. As in stress.cpp they map the file each on its own, as processes do, or share one mapping, so
// that every byte has one address and a race detector knows nothing that orders chunks but their words.
#include "stress_center.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "center.hpp"
#include "center_board.hpp"
#include "center_queue.hpp"

namespace {

using samovar::Center;
using samovar::CenterFile;
using samovar::CenterQueue;

constexpr std::uint32_t kMembers = 4;
constexpr std::uint64_t kChunk = 96, kElements = 7 * kChunk + 5, kChunks = 8;
constexpr std::uint64_t kUpdates = 60;
constexpr std::uint64_t kWaitNs = 30'000'000'000;
constexpr float kStart = 1024;

std::atomic<const char*> wrong{nullptr};

void expect(bool holds, const char* what) {
  if (!holds) wrong.store(what);
}

samovar::Patience soon() { return {samovar::monotonic_ns() + kWaitNs}; }

int sealed(int fd) {
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  return fd;
}

class Files {
 public:
  Files(bool shared, bool has_locks) : shared_(shared), fd_(memfd_create("samovar-stress", MFD_ALLOW_SEALING)) {
    CenterFile::create(fd_, {kElements, kChunk, kMembers, true, has_locks});
    sealed(fd_);
    first_ = std::make_shared<CenterFile>(fd_);
  }
  ~Files() { close(fd_); }
  std::shared_ptr<CenterFile> file() const { return shared_ ? first_ : std::make_shared<CenterFile>(fd_); }

 private:
  bool shared_;
  int fd_;
  std::shared_ptr<CenterFile> first_;
};

void at_once(const std::function<void(std::uint32_t)>& work) {
  std::vector<std::thread> threads;
  for (std::uint32_t member = 0; member < kMembers; ++member) threads.emplace_back(work, member);
  for (std::thread& thread : threads) thread.join();
}

// A chunk's elements are equal at every moment, and its version and value only grow.
void check_chunks(const std::vector<float>& seen, const std::vector<std::int64_t>& versions,
                  std::vector<std::int64_t>& last) {
  for (std::uint64_t i = 0; i < kElements; ++i) expect(seen[i] == seen[i / kChunk * kChunk], "a torn chunk was read");
  for (std::uint64_t chunk = 0; chunk < kChunks; ++chunk)
    expect(versions[chunk] >= last[chunk], "the version of a chunk went back");
  last = versions;
}

// Sums of whole numbers, in the background and not, with rows given back and taken again.
void add(const Files& files, std::uint32_t member, std::uint64_t seed) {
  std::mt19937_64 random(seed + member);
  const std::vector<float> own(kElements, static_cast<float>(member + 1));
  std::vector<float> seen(kElements);
  std::vector<std::int64_t> versions(kChunks), last(kChunks);
  for (std::uint64_t incarnation = 1; incarnation <= 3; ++incarnation) {
    auto center = std::make_shared<Center>(files.file());
    center->attach(member, incarnation);
    CenterQueue queue(center);
    std::vector<std::uint64_t> tickets;
    for (std::uint64_t sequence = 1; sequence <= kUpdates / 3; ++sequence) {
      if (random() % 2 == 0) {
        tickets.push_back(queue.submit(sequence, own.data(), 0));
      } else {
        expect(queue.enter(kWaitNs), "the thread did not end its work");
        expect(center->accumulate(center->all(), sequence, own.data(), 0, versions.data(), soon()), "accumulate");
        expect(center->accumulate(center->all(), sequence, own.data(), 0, versions.data(), soon()), "accumulate again");
        queue.leave();
      }
      expect(center->read(center->all(), seen.data(), false, versions.data(), soon()), "read");
      check_chunks(seen, versions, last);
    }
    for (const std::uint64_t ticket : tickets) expect(queue.wait(ticket, kWaitNs).has_value(), "wait for a push");
  }
}

struct Seen {
  std::vector<float> values;
  std::vector<std::int64_t> versions;
};

Seen read_all(const Files& files, bool velocity = false) {
  Center center(files.file());
  Seen seen{std::vector<float>(kElements), std::vector<std::int64_t>(kChunks)};
  expect(center.read(center.all(), seen.values.data(), velocity, seen.versions.data(), soon()), "read");
  return seen;
}

void check_sums(const Files& files) {
  const Seen seen = read_all(files);
  for (const float value : seen.values) expect(value == kUpdates * 10.0f, "a sum of all updates");
  for (const std::int64_t version : seen.versions)
    expect(version == kUpdates * kMembers, "a version after all updates");
}

// Powers of two at a rate of one half: with every rounding exact, sum of x and c stays what it was.
void exchange(const Files& files, std::uint32_t member, std::vector<float>& weights) {
  Center center(files.file());
  center.attach(member, 1);
  std::vector<float> moved(kElements);
  std::vector<std::int64_t> versions(kChunks);
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    if (sequence % 2 != 0) {
      expect(center.exchange(center.all(), sequence, weights.data(), 0.5f, versions.data(), soon()), "exchange");
    } else {
      const float* x = weights.data();
      expect(center.exchange_into(center.all(), sequence, x, moved.data(), 0.5f, versions.data(), soon()), "exchange");
      weights = moved;
    }
  }
}

void check_exchange(const Files& files, const std::vector<std::vector<float>>& weights) {
  const std::vector<float> seen = read_all(files).values;
  for (std::uint64_t i = 0; i < kElements; ++i) {
    float sum = seen[i];
    for (const auto& own : weights) sum += own[i];
    expect(sum == kStart * kMembers, "the sum of all weights and the center");
  }
}

// With a momentum of one the velocity is the sum of all updates, whatever their order; a chunk is never torn.
void add_with_momentum(const Files& files, std::uint32_t member) {
  Center center(files.file());
  center.attach(member, 1);
  const std::vector<float> own(kElements, static_cast<float>(member + 1));
  std::vector<float> seen(kElements);
  std::vector<std::int64_t> versions(kChunks), last(kChunks);
  for (std::uint64_t sequence = 1; sequence <= kUpdates; ++sequence) {
    expect(center.accumulate(center.all(), sequence, own.data(), 1, versions.data(), soon()), "accumulate");
    expect(center.read(center.all(), seen.data(), sequence % 2 == 0, versions.data(), soon()), "read");
    check_chunks(seen, versions, last);
  }
}

void check_velocity(const Files& files) {
  for (const float value : read_all(files, true).values) expect(value == kUpdates * 10.0f, "a velocity of all updates");
}

// Without locks the sum may change, but everything stays between what x and c were at first.
void check_between(const Files& files, const std::vector<std::vector<float>>& weights) {
  const std::vector<float> seen = read_all(files).values;
  for (std::uint64_t i = 0; i < kElements; ++i) {
    expect(seen[i] > 0 && seen[i] < kStart, "a center beyond all weights");
    for (const auto& own : weights) expect(own[i] > 0 && own[i] < kStart, "a weight beyond all weights");
  }
}

// Without locks members may lose updates to each other, but no element is anything that nobody wrote.
void add_anyhow(const Files& files, std::uint32_t member) {
  Center center(files.file());
  center.attach(member, 1);
  const std::vector<float> own(kElements, 1);
  std::vector<float> seen(kElements), weights(kElements, 0);
  std::vector<std::int64_t> versions(kChunks);
  for (std::uint64_t sequence = 1; sequence <= kUpdates; ++sequence) {
    const float momentum = sequence % 2 == 0 ? 0.5f : 0.0f;
    expect(center.accumulate(center.all(), sequence, own.data(), momentum, versions.data(), soon()), "accumulate");
    expect(center.read(center.all(), seen.data(), false, versions.data(), soon()), "read");
    for (const float value : seen) expect(value > 0 && value <= 3.0f * kUpdates * kMembers, "an element out of nothing");
    if (member == 0) expect(center.read(center.all(), seen.data(), true, versions.data(), soon()), "read a velocity");
  }
}

// One writes a number that grows while the others add nothing: a chunk has one of these numbers at every moment.
void write_among_others(const Files& files, std::uint32_t member) {
  Center center(files.file());
  center.attach(member, 1);
  const std::vector<float> nothing(kElements, 0);
  std::vector<float> seen(kElements);
  std::vector<std::int64_t> versions(kChunks), last(kChunks);
  for (std::uint64_t sequence = 1; sequence <= kUpdates; ++sequence) {
    const std::vector<float> own(kElements, static_cast<float>(sequence));
    if (member == 0) {
      expect(center.write(center.all(), own.data(), sequence % 2 == 0, soon()), "write");
    } else {
      expect(center.accumulate(center.all(), sequence, nothing.data(), 0, versions.data(), soon()), "accumulate");
    }
    expect(center.read(center.all(), seen.data(), sequence % 2 == 0, versions.data(), soon()), "read");
    check_chunks(seen, versions, last);
  }
}

void post(const std::shared_ptr<samovar::CenterBoard>& board, std::uint32_t member) {
  const std::uint64_t incarnation = board->join(member);
  expect(incarnation != 0, "a free row was not given");
  std::uint64_t words[samovar::kPostWords], seen[samovar::kPostWords];
  for (std::uint64_t number = 1; number <= 20 * kUpdates; ++number) {
    for (std::uint64_t& word : words) word = number;
    expect(board->post(member, incarnation, words), "a post to an own row");
    board->read((member + 1) % kMembers, seen);
    for (const std::uint64_t word : seen) expect(word == seen[0], "a torn post was read");
  }
  board->leave(member, incarnation);
}

void stress_board() {
  const int fd = memfd_create("samovar-stress", MFD_ALLOW_SEALING);
  samovar::CenterBoard::create(fd, kMembers);
  const auto board = std::make_shared<samovar::CenterBoard>(sealed(fd));
  at_once([&](std::uint32_t member) { post(board, member); });
  at_once([&](std::uint32_t) {  // all want the same row
    if (const std::uint64_t incarnation = board->join(0)) board->leave(0, incarnation);
  });
  close(fd);
}

}  // namespace

const char* stress_center(std::uint64_t seed) {
  for (const bool shared : {false, true}) {
    const Files sums(shared, true), exchanges(shared, true), velocities(shared, true), writes(shared, true);
    const Files anyhow(shared, false), exchanges_anyhow(shared, false);
    at_once([&](std::uint32_t member) { add(sums, member, seed); });
    check_sums(sums);
    at_once([&](std::uint32_t member) { add_with_momentum(velocities, member); });
    check_velocity(velocities);
    const std::vector<std::vector<float>> start(kMembers, std::vector<float>(kElements, kStart));
    auto weights = start;
    at_once([&](std::uint32_t member) { exchange(exchanges, member, weights[member]); });
    check_exchange(exchanges, weights);
    weights = start;
    at_once([&](std::uint32_t member) { exchange(exchanges_anyhow, member, weights[member]); });
    check_between(exchanges_anyhow, weights);
    at_once([&](std::uint32_t member) { add_anyhow(anyhow, member); });
    at_once([&](std::uint32_t member) { write_among_others(writes, member); });
  }
  stress_board();
  return wrong.load();
}
