// Work shared among the threads that torch computes with.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace samovar {

// work(begin, end) for parts that together are [0, count), on up to `threads` threads. Which parts there are depends
// on `threads`; what is computed for an index must not. `cost` is about how many numbers the work touches: little work
// stays on the caller's thread. What a part throws is thrown here.
//
// The threads are those of the OpenMP library that is loaded already (torch's), so two pools never compete for the
// cores. Where there is none, the caller's thread does everything.
void parallel(std::size_t count, std::size_t cost, int threads,
              const std::function<void(std::size_t begin, std::size_t end)>& work);

// While it lives, libgomp manages `count` threads more, all of them asleep. If it manages more threads than there are
// cores, its threads sleep at once when they wait for each other. Otherwise they spin for milliseconds first, possibly
// on the core that the awaited thread needs. Nothing else changes libgomp's choice while a process runs.
class IdleThreads {
 public:
  explicit IdleThreads(unsigned count);
  ~IdleThreads();
  IdleThreads(const IdleThreads&) = delete;
  IdleThreads& operator=(const IdleThreads&) = delete;

 private:
  struct Sleeper {
    std::mutex mutex;
    std::condition_variable ended;
    bool is_over = false;
    std::thread thread;
  };

  std::unique_ptr<Sleeper> sleeper_;  // none without threads
  const pid_t process_;
};

}  // namespace samovar
