#include "parallel.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>

namespace samovar {
namespace {

// Waking a thread costs as much as touching about this many numbers.
constexpr std::size_t kLeastCost = 32768;

// libgomp's entry to a parallel region, which other OpenMP libraries offer too: runs function(data) on every thread.
using ParallelRegion = void (*)(void (*function)(void*), void* data, unsigned threads, unsigned flags);

ParallelRegion find_region() {
  void* found = dlsym(RTLD_DEFAULT, "GOMP_parallel");
  if (found == nullptr)
    if (void* library = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD)) found = dlsym(library, "GOMP_parallel");
  return reinterpret_cast<ParallelRegion>(found);
}

// Looked for until it is there: torch may be loaded later.
ParallelRegion parallel_region() {
  static std::atomic<ParallelRegion> found{nullptr};
  ParallelRegion region = found.load(std::memory_order_relaxed);
  if (region == nullptr) found.store(region = find_region(), std::memory_order_relaxed);
  return region;
}

struct Parts {
  const std::function<void(std::size_t, std::size_t)>& work;
  const std::size_t count;
  const std::size_t num_parts;
  std::atomic<std::size_t> next{0};
  std::atomic<bool> has_failed{false};
  std::exception_ptr failure{};
};

void take_parts(void* data) {
  Parts& parts = *static_cast<Parts*>(data);
  for (std::size_t part; (part = parts.next.fetch_add(1)) < parts.num_parts;) {
    try {
      parts.work(parts.count * part / parts.num_parts, parts.count * (part + 1) / parts.num_parts);
    } catch (...) {
      if (!parts.has_failed.exchange(true)) parts.failure = std::current_exception();
    }
  }
}

}  // namespace

void parallel(std::size_t count, std::size_t cost, int threads,
              const std::function<void(std::size_t, std::size_t)>& work) {
  if (count == 0) return;
  const std::size_t most = static_cast<std::size_t>(std::max(threads, 1));
  const std::size_t num_parts = std::min({count, cost / kLeastCost + 1, most});
  if (num_parts == 1) return work(0, count);
  const ParallelRegion region = parallel_region();
  if (region == nullptr) return work(0, count);
  Parts parts{work, count, num_parts};
  region(take_parts, &parts, static_cast<unsigned>(num_parts), 0);
  if (parts.failure) std::rethrow_exception(parts.failure);
}

IdleThreads::IdleThreads(unsigned count) : process_(getpid()) {
  const ParallelRegion region = parallel_region();
  if (region == nullptr || count == 0) return;
  sleeper_ = std::make_unique<Sleeper>();
  // A pool belongs to the thread that opened a region, and ends with it.
  sleeper_->thread = std::thread([sleeper = sleeper_.get(), region, count] {
    region([](void*) {}, nullptr, count + 1, 0);
    std::unique_lock lock(sleeper->mutex);
    sleeper->ended.wait(lock, [sleeper] { return sleeper->is_over; });
  });
}

IdleThreads::~IdleThreads() {
  if (sleeper_ == nullptr) return;
  if (process_ != getpid()) {  // the child of a fork has no such thread, for which it would wait for ever
    (void)sleeper_.release();
    return;
  }
  {
    const std::lock_guard lock(sleeper_->mutex);
    sleeper_->is_over = true;
  }
  sleeper_->ended.notify_one();
  sleeper_->thread.join();
}

}  // namespace samovar
