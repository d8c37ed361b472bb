// The least that a wake-up costs here: two processes on cores of their own, one shared futex word each way.
//
//   futex_ping_pong CPU CPU      reads numbers of round trips, a line each; answers with nanoseconds a round trip
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace {

using Word = std::atomic<std::uint32_t>;

struct Shared {
  alignas(64) Word ping;
  alignas(64) Word pong;
};

void pin(const char* cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(std::atoi(cpu), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) std::exit(1);
}

void send(Word& word, std::uint32_t value) {
  word.store(value);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void receive(Word& word, std::uint32_t value) {
  while (word.load() != value)
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, value - 1, nullptr, nullptr, 0);
}

std::int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}

[[noreturn]] void answer(Shared& shared, const char* cpu) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pin(cpu);
  for (std::uint32_t turn = 1;; ++turn) {
    receive(shared.ping, turn);
    send(shared.pong, turn);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 1;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto& shared = *new (memory) Shared{};
  if (fork() == 0) answer(shared, arguments[2]);
  pin(arguments[1]);
  std::uint32_t turn = 0;
  for (long rounds = 0; std::scanf("%ld", &rounds) == 1;) {
    const std::int64_t began_ns = now_ns();
    for (long round = 0; round < rounds; ++round) {
      send(shared.ping, ++turn);
      receive(shared.pong, turn);
    }
    std::printf("%.1f\n", static_cast<double>(now_ns() - began_ns) / static_cast<double>(rounds));
    std::fflush(stdout);
  }
}
