// A thread that accumulates into a center while its member computes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "center.hpp"

namespace samovar {

// Lets one operation at a time change the center, those in the background in the order in which they came. The thread
// starts with the first.
class CenterQueue {
 public:
  explicit CenterQueue(std::shared_ptr<Center> center) : center_(std::move(center)) {}
  ~CenterQueue() { stop(); }
  CenterQueue(const CenterQueue&) = delete;
  CenterQueue& operator=(const CenterQueue&) = delete;

  // Ends the thread after the chunk at hand: what is not complete by then stays incomplete, and waits for it throw.
  void stop();
  // Begins an accumulate and returns its ticket; never waits. `difference` must live until a wait for it is over.
  std::uint64_t submit(std::uint64_t sequence, const float* difference, float momentum);
  // The versions of a ticket's chunks, once; empty when `timeout_ns` passed first. Throws what the accumulate threw.
  std::optional<std::vector<std::int64_t>> wait(std::uint64_t ticket, std::uint64_t timeout_ns);
  // Waits until nothing is left to do, then keeps the thread from what comes, until leave(); false when `timeout_ns`
  // passed first.
  bool enter(std::uint64_t timeout_ns);
  void leave();

 private:
  struct Item {
    std::uint64_t ticket;
    std::uint64_t sequence;
    const float* difference;
    float momentum;
  };
  struct Result {
    std::vector<std::int64_t> versions;
    std::exception_ptr error;
  };

  void loop();
  Result run(const Item& item);

  std::shared_ptr<Center> center_;
  std::mutex mutex_;
  std::condition_variable submitted_;
  std::condition_variable completed_;
  std::deque<Item> items_;  // the first one is under way
  std::map<std::uint64_t, Result> results_;
  std::uint64_t last_ticket_ = 0;
  bool is_entered_ = false;
  std::atomic<bool> closing_{false};
  std::thread thread_;
};

}  // namespace samovar
