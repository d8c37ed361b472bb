// A plan as an array of operations on mapped memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "window.hpp"

namespace samovar {

enum class Element : std::uint8_t { kFloat32, kFloat64 };

// Copy `size` bytes into memory of `peer`, then notify its slot.
struct PutOperation {
  std::uint32_t peer;
  std::uint32_t slot;
  std::byte* destination;
  const std::byte* source;
  std::uint64_t size;
};

// Every destination = ((sources[0] + sources[1]) + sources[2]) + ..., element by element.
struct CombineOperation {
  std::vector<std::byte*> destinations;
  std::vector<const std::byte*> sources;
  std::uint64_t count;
  Element element;
};

struct NotifyOperation {
  std::uint32_t peer;
  std::uint32_t slot;
};

struct WaitOperation {
  std::uint32_t slot;
};

using Operation = std::variant<PutOperation, CombineOperation, NotifyOperation, WaitOperation>;

// Numbers of notifications: (run << kStepBits) | step, as the Python executor counts them.
inline constexpr unsigned kStepBits = 24;

struct RunningPrograms;

class Program {
 public:
  explicit Program(std::shared_ptr<Window> window) : window_(std::move(window)) {}
  // Ends its run in a thread, which stays incomplete.
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Throws std::out_of_range where the operation names a slot or a rank that the window has not.
  void add(Operation operation);

  // The next run, from its first operation; false when `timeout_ns` passed before its last.
  bool run(std::uint64_t timeout_ns);
  // Go on with a run that did not end in time.
  bool resume(std::uint64_t timeout_ns);

  std::uint64_t steps() const { return step_; }
  // The operation that is waited for, by number.
  std::size_t position() const { return position_.load(std::memory_order_relaxed); }
  // The two halves of `run`: enter the next run; do what can be done without waiting, true if that was all.
  void begin();
  void begin_in(const std::shared_ptr<RunningPrograms>& thread);
  bool advance();
  // The next operation alone; false where it would wait, or where none is left.
  bool perform_next();
  bool is_complete() const { return position() == operations_.size(); }

 private:
  bool perform(const Operation& operation);

  std::shared_ptr<Window> window_;
  std::weak_ptr<RunningPrograms> thread_;
  std::vector<Operation> operations_;
  std::uint64_t run_ = 0;
  std::uint64_t step_ = 0;
  std::atomic<std::size_t> position_{0};  // read by others for a report on a run that hangs
};

}  // namespace samovar
