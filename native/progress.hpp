// A thread that runs programs while their owner computes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "program.hpp"

namespace samovar {

// The programs that a thread runs. Their owners keep them; one that ends before its run is complete withdraws.
struct RunningPrograms {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Program*> programs;
  const Program* advancing = nullptr;  // what the thread moves data for, without the lock

  // Forget the run of a program that ends; waits only for the operation at hand.
  void withdraw(const Program* program);
};

// Runs any number of one rank's programs at once, each in its own order, and sleeps on the rank's doorbell
// while none can go on.
class ProgressThread {
 public:
  ProgressThread(std::shared_ptr<Segment> segment, std::uint32_t rank, std::uint64_t spin_ns);
  // Ends after the operation at hand; runs that are not complete stay incomplete.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // Begin the next run of `program`, whose last run must be complete. Never waits for other ranks.
  void submit(Program& program);
  // Wait for the submitted run; false when `timeout_ns` passed first.
  bool wait(const Program& program, std::uint64_t timeout_ns);

 private:
  void loop();
  bool advance_all();
  bool is_running(const Program& program) const;

  std::shared_ptr<Segment> segment_;
  std::uint32_t rank_;
  std::uint64_t spin_ns_;
  std::shared_ptr<RunningPrograms> running_ = std::make_shared<RunningPrograms>();
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace samovar
