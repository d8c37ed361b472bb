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

void RunningPrograms::withdraw(const Program* program) {
  std::unique_lock lock(mutex);
  programs.erase(std::remove(programs.begin(), programs.end(), program), programs.end());
  changed.wait(lock, [&] { return advancing != program; });
}

ProgressThread::~ProgressThread() {
  {
    const std::lock_guard lock(running_->mutex);
    closing_ = true;
  }
  segment_->ring(rank_);
  thread_.join();
}

void ProgressThread::submit(Program& program) {
  {
    const std::lock_guard lock(running_->mutex);
    if (is_running(program)) throw std::logic_error("the program's last run is not complete");
    program.begin_in(running_);
    running_->programs.push_back(&program);
  }
  segment_->ring(rank_);
}

bool ProgressThread::wait(const Program& program, std::uint64_t timeout_ns) {
  std::unique_lock lock(running_->mutex);
  return running_->changed.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [&] { return !is_running(program); });
}

bool ProgressThread::is_running(const Program& program) const {
  const auto& programs = running_->programs;
  return std::find(programs.begin(), programs.end(), &program) != programs.end();
}

// True if anything could be done. Data moves outside the lock, where `advancing` keeps the program.
bool ProgressThread::advance_all() {
  bool progressed = false;
  std::unique_lock lock(running_->mutex);
  for (std::size_t number = 0; number < running_->programs.size();) {
    Program* const program = running_->programs[number];
    running_->advancing = program;
    lock.unlock();
    const std::size_t before = program->position();
    const bool complete = program->advance();
    lock.lock();
    auto& programs = running_->programs;
    const auto found = std::find(programs.begin(), programs.end(), program);
    const bool is_withdrawn = found == programs.end();
    progressed = progressed || complete || is_withdrawn || program->position() != before;
    number = static_cast<std::size_t>(found - programs.begin());
    if (complete && !is_withdrawn) programs.erase(found);
    if (!complete) ++number;
    running_->advancing = nullptr;
    running_->changed.notify_all();
  }
  return progressed;
}

void ProgressThread::loop() {
  for (;;) {
    // Read before looking: whatever is submitted or arrives later changes it and ends the sleep.
    const std::uint32_t rings = segment_->rings(rank_);
    {
      const std::lock_guard lock(running_->mutex);
      if (closing_) return;
    }
    if (!advance_all()) segment_->wait_ring(rank_, rings, spin_ns_, kSleepNs);
  }
}

}  // namespace samovar
