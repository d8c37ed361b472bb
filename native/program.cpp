#include "program.hpp"

#include <chrono>
#include <cstring>
#include <utility>

#include "kernels.hpp"
#include "progress.hpp"

namespace samovar {
namespace {

using Clock = std::chrono::steady_clock;

template <typename Number>
void sum_all(const CombineOperation& operation) {
  auto destinations = reinterpret_cast<Number* const*>(operation.destinations.data());
  auto sources = reinterpret_cast<const Number* const*>(operation.sources.data());
  samovar::combine(destinations, operation.destinations.size(), sources, operation.sources.size(), operation.count);
}

}  // namespace

void Program::add(Operation operation) {
  if (const auto* wait = std::get_if<WaitOperation>(&operation)) window_->check_slot(window_->rank(), wait->slot);
  if (const auto* put = std::get_if<PutOperation>(&operation)) window_->check_slot(put->peer, put->slot);
  if (const auto* told = std::get_if<NotifyOperation>(&operation)) window_->check_slot(told->peer, told->slot);
  operations_.push_back(std::move(operation));
}

Program::~Program() {
  if (const auto thread = thread_.lock()) thread->withdraw(this);
}

void Program::begin_in(const std::shared_ptr<RunningPrograms>& thread) {
  thread_ = thread;
  begin();
}

void Program::begin() {
  ++run_;
  step_ = 0;
  position_ = 0;
}

bool Program::perform(const Operation& operation) {
  const auto notify = [&](std::uint32_t peer, std::uint32_t slot) {
    ++step_;
    window_->notify(peer, slot, (run_ << kStepBits) | step_);
  };
  if (const auto* wait = std::get_if<WaitOperation>(&operation)) {
    const std::uint64_t value = window_->slot(wait->slot);
    if (value < run_ << kStepBits) return false;
    step_ = std::max(step_, value & ((std::uint64_t{1} << kStepBits) - 1));
  } else if (const auto* put = std::get_if<PutOperation>(&operation)) {
    if (put->size > 0) std::memcpy(put->destination, put->source, put->size);
    notify(put->peer, put->slot);
  } else if (const auto* told = std::get_if<NotifyOperation>(&operation)) {
    notify(told->peer, told->slot);
  } else if (const auto* sum = std::get_if<CombineOperation>(&operation)) {
    sum->element == Element::kFloat32 ? sum_all<float>(*sum) : sum_all<double>(*sum);
  }
  return true;
}

bool Program::perform_next() {
  const std::size_t next = position();
  if (next == operations_.size() || !perform(operations_[next])) return false;
  position_.store(next + 1, std::memory_order_relaxed);
  return true;
}

bool Program::advance() {
  while (perform_next()) continue;
  return is_complete();
}

bool Program::run(std::uint64_t timeout_ns) {
  begin();
  return resume(timeout_ns);
}

bool Program::resume(std::uint64_t timeout_ns) {
  const auto end = Clock::now() + std::chrono::nanoseconds(timeout_ns);
  while (!advance()) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(end - Clock::now()).count();
    const auto slot = std::get<WaitOperation>(operations_[position_]).slot;
    if (left <= 0 || !window_->wait(slot, run_ << kStepBits, static_cast<std::uint64_t>(left))) return false;
  }
  return true;
}

}  // namespace samovar
