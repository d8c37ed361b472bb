#include "center_queue.hpp"

#include <chrono>
#include <stdexcept>
#include <utility>

namespace samovar {

void CenterQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  submitted_.notify_all();
  if (thread_.joinable()) thread_.join();
  {
    const std::lock_guard lock(mutex_);
    items_.clear();
  }
  completed_.notify_all();
}

std::uint64_t CenterQueue::submit(std::uint64_t sequence, const float* difference, float momentum) {
  const std::lock_guard lock(mutex_);
  if (closing_) throw std::logic_error("the center is closed");
  // First: if the system gives no thread, nothing is under way.
  if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  items_.push_back({++last_ticket_, sequence, difference, momentum});
  submitted_.notify_one();
  return last_ticket_;
}

std::optional<std::vector<std::int64_t>> CenterQueue::wait(std::uint64_t ticket, std::uint64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return results_.count(ticket) != 0 || closing_; };
  if (!completed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), is_over)) return std::nullopt;
  if (results_.count(ticket) == 0) throw std::logic_error("the center was closed before the update was complete");
  Result result = std::move(results_.extract(ticket).mapped());
  if (result.error) std::rethrow_exception(result.error);
  return std::move(result.versions);
}

bool CenterQueue::enter(std::uint64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  const auto is_free = [&] { return items_.empty() && !is_entered_; };
  if (!completed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), is_free)) return false;
  return is_entered_ = true;
}

void CenterQueue::leave() {
  {
    const std::lock_guard lock(mutex_);
    is_entered_ = false;
  }
  completed_.notify_all();
  submitted_.notify_all();
}

CenterQueue::Result CenterQueue::run(const Item& item) {
  Result result{std::vector<std::int64_t>(center_->num_chunks()), nullptr};
  try {
    center_->accumulate(center_->all(), item.sequence, item.difference, item.momentum, result.versions.data(),
                        {kNoDeadline, &closing_});
  } catch (...) {
    result.error = std::current_exception();
  }
  return result;
}

void CenterQueue::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    submitted_.wait(lock, [&] { return closing_ || (!items_.empty() && !is_entered_); });
    if (closing_) return;
    const Item item = items_.front();
    lock.unlock();
    Result result = run(item);
    lock.lock();
    if (closing_) return;
    results_[item.ticket] = std::move(result);
    items_.pop_front();
    completed_.notify_all();
  }
}

}  // namespace samovar
