#include "progress.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace samovar {
namespace {

// Only a bound on a sleep that every ring ends at once.
constexpr std::uint64_t kSleepNs = 1'000'000'000;

}  // namespace

ProgressThread::ProgressThread(std::shared_ptr<Segment> segment, std::uint32_t rank, std::uint64_t spin_ns)
    : segment_(std::move(segment)), rank_(rank), spin_ns_(spin_ns), thread_([this] { loop(); }) {}

ProgressThread::~ProgressThread() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  segment_->ring(rank_);
  thread_.join();
}

void ProgressThread::submit(std::shared_ptr<Program> program) {
  {
    const std::lock_guard lock(mutex_);
    if (is_running(*program)) throw std::logic_error("the program's last run is not complete");
    program->begin();
    running_.push_back(std::move(program));
  }
  segment_->ring(rank_);
}

bool ProgressThread::wait(const Program& program, std::uint64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  return completed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [&] { return !is_running(program); });
}

bool ProgressThread::is_running(const Program& program) const {
  return std::any_of(running_.begin(), running_.end(), [&](const auto& other) { return other.get() == &program; });
}

// True if anything could be done. Programs are taken out of the list's lock while they move data.
bool ProgressThread::advance_all() {
  std::vector<std::shared_ptr<Program>> programs;
  {
    const std::lock_guard lock(mutex_);
    programs = running_;
  }
  bool progressed = false;
  for (const auto& program : programs) {
    const std::size_t before = program->position();
    const bool complete = program->advance();
    progressed = progressed || complete || program->position() != before;
    if (!complete) continue;
    const std::lock_guard lock(mutex_);
    running_.erase(std::find(running_.begin(), running_.end(), program));
    completed_.notify_all();
  }
  return progressed;
}

void ProgressThread::loop() {
  for (;;) {
    // Read before looking: whatever is submitted or arrives later changes it and ends the sleep.
    const std::uint32_t rings = segment_->rings(rank_);
    {
      const std::lock_guard lock(mutex_);
      if (closing_) return;
    }
    if (!advance_all()) segment_->wait_ring(rank_, rings, spin_ns_, kSleepNs);
  }
}

}  // namespace samovar
