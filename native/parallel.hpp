// Work shared among the threads that torch computes with.
#pragma once

#include <cstddef>
#include <functional>

namespace samovar {

// work(begin, end) for parts that together are [0, count), on up to `threads` threads. Which parts there are depends
// on `threads`; what is computed for an index must not. `cost` is about how many numbers the work touches: little work
// stays on the caller's thread. What a part throws is thrown here.
//
// The threads are those of the OpenMP library that is loaded already (torch's), so two pools never compete for the
// cores. Where there is none, the caller's thread does everything.
void parallel(std::size_t count, std::size_t cost, int threads,
              const std::function<void(std::size_t begin, std::size_t end)>& work);

}  // namespace samovar
