#include "owner.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace samovar {
namespace {

constexpr unsigned kProcessBits = 24;  // Linux gives out 22
constexpr unsigned kStartBits = 48;

struct ProcessSeen {
  bool is_alive;
  std::uint64_t started;  // 0 if this process has no free descriptor to see it by
};

std::uint64_t name_of(std::uint64_t incarnation, std::uint32_t process_id) {
  return incarnation << kProcessBits | process_id;
}

// Marked with the name it belongs to: it is written after the name, and until then an older one stands there.
std::uint64_t start_of(std::uint64_t name, std::uint64_t started) {
  return (name ^ name >> kProcessBits) << kStartBits | (started & ((std::uint64_t{1} << kStartBits) - 1));
}

// From /proc/PID/stat, in which the program's name may hold anything, also blanks and brackets.
ProcessSeen process_seen(std::uint32_t process_id) {
  char path[32], text[1024];
  std::snprintf(path, sizeof path, "/proc/%u/stat", process_id);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT || errno == ESRCH) return {false, 0};
    return {kill(static_cast<pid_t>(process_id), 0) == 0 || errno != ESRCH, 0};
  }
  const ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  if (size <= 0) return {false, 0};
  text[size] = '\0';
  const char* rest = std::strrchr(text, ')');
  char state = 0;
  long threads = 0;
  unsigned long long started = 0;
  constexpr const char* kFields = ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s %llu";
  if (rest == nullptr || std::sscanf(rest, kFields, &state, &threads, &started) != 3) return {false, 0};
  // A dead process that nobody has waited for; with other threads left, it is still ending.
  const bool ended = state == 'X' || (state == 'Z' && threads <= 1);
  return {!ended, started};
}

}  // namespace

OwnerSeen see(const Owner& owner) {
  const std::uint64_t name = owner.name.load(std::memory_order_acquire);
  const std::uint64_t started = owner.started.load(std::memory_order_acquire);
  const std::uint64_t incarnation = name >> kProcessBits;
  const auto process_id = static_cast<std::uint32_t>(name & ((1u << kProcessBits) - 1));
  if (process_id == 0) return {incarnation, 0, false};
  const ProcessSeen process = process_seen(process_id);
  const bool is_known = started >> kStartBits == start_of(name, 0) >> kStartBits;
  const bool is_another = is_known && process.started != 0 && started != start_of(name, process.started);
  return {incarnation, process_id, process.is_alive && !is_another};
}

bool take(Owner& owner, const OwnerSeen& seen, std::uint64_t incarnation) {
  if (seen.is_alive || seen.incarnation > incarnation) return false;
  const std::uint64_t name = own_name(incarnation);
  std::uint64_t expected = name_of(seen.incarnation, seen.process_id);
  if (!owner.name.compare_exchange_strong(expected, name)) return false;
  const std::uint64_t started = process_seen(static_cast<std::uint32_t>(getpid())).started;
  if (started != 0) owner.started.store(start_of(name, started), std::memory_order_release);
  return true;
}

void give_back(Owner& owner, std::uint64_t incarnation) {
  std::uint64_t expected = own_name(incarnation);
  owner.name.compare_exchange_strong(expected, name_of(incarnation, 0));
}

std::uint64_t own_name(std::uint64_t incarnation) {
  return name_of(incarnation, static_cast<std::uint32_t>(getpid()));
}

}  // namespace samovar
