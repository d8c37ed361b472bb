// Litmus test of a window: a rank that sees a notification sees the data that was put before it.
//
//   litmus [ROUNDS [SEED]]     ROUNDS notifications between two processes, 100 million by default
//
// Two processes on cores of their own put four cache lines, stamped with the round and in an order that changes,
// notify, and read what the other put: any word of another round is a violation. Exits 1 where there is one.
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "window.hpp"

namespace {

using samovar::Segment;
using samovar::Window;

constexpr std::uint32_t kLines = 4;
constexpr std::uint32_t kWords = 8;
constexpr std::uint32_t kBytes = kLines * kWords * sizeof(std::uint64_t);
constexpr std::uint64_t kSpinNs = 50'000;
constexpr std::uint64_t kTimeoutNs = 60'000'000'000;

struct Line {
  std::uint64_t words[kWords];
};

void pin(std::uint32_t rank) {
  cpu_set_t all;
  if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2) return;
  std::uint32_t seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all) || seen++ != rank) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

void put_lines(Window& window, std::uint32_t peer, std::uint64_t round, std::uint64_t seed) {
  Line line;
  for (std::uint64_t& word : line.words) word = round;
  for (std::uint32_t k = 0; k < kLines; ++k)
    window.put(peer, (k + round * 3 + seed) % kLines * sizeof(Line), &line, sizeof line);
  window.notify(peer, 0, round);
}

// Words that are not of this round.
std::uint64_t count_wrong(const Window& window, std::uint32_t rank, std::uint64_t round) {
  const auto* words = reinterpret_cast<const volatile std::uint64_t*>(window.memory(rank));
  std::uint64_t wrong = 0;
  for (std::uint32_t k = 0; k < kLines * kWords; ++k) wrong += words[k] != round;
  return wrong;
}

// Each notification answers the one before, so nothing is put before the last was read.
int run(int fd, std::uint32_t rank, std::uint64_t rounds, std::uint64_t seed) {
  pin(rank);
  Window window(std::make_shared<Segment>(fd, 2), rank, Segment::head_bytes(2), 1, kBytes, kSpinNs);
  std::uint64_t violations = 0;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    if (round % 2 == rank) {
      put_lines(window, 1 - rank, round, seed);
      continue;
    }
    if (!window.wait(0, round, kTimeoutNs)) {
      std::fprintf(stderr, "litmus: rank %u: notification %lu did not come\n", rank, static_cast<unsigned long>(round));
      return 1;
    }
    violations += count_wrong(window, rank, round) != 0;
  }
  std::printf("rank %u: %lu violations\n", rank, static_cast<unsigned long>(violations));
  return violations == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  const std::uint64_t rounds = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 100'000'000;
  const std::uint64_t seed = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1;
  const int fd = memfd_create("samovar-litmus", MFD_CLOEXEC);
  if (fd < 0) return 1;
  const pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return run(fd, 1, rounds, seed);
  }
  const int own = run(fd, 0, rounds, seed);
  int status = 0;
  waitpid(child, &status, 0);
  return own == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}
