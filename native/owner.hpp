// Whom a row of shared memory belongs to: an incarnation and a process of this machine, which may be dead by now.
#pragma once

#include <atomic>
#include <cstdint>

namespace samovar {

inline constexpr std::uint64_t kMaxIncarnation = (std::uint64_t{1} << 40) - 1;

// All zero: nobody ever. A row is taken by one compare-and-swap, so of two that want it one gets it.
struct Owner {
  std::atomic<std::uint64_t> name;     // incarnation << 24 | process id; process id 0: given back
  std::atomic<std::uint64_t> started;  // 16 bits of the name << 48 | when the process started, in clock ticks since boot
};

struct OwnerSeen {
  std::uint64_t incarnation;
  std::uint32_t process_id;
  bool is_alive;
};

OwnerSeen see(const Owner& owner);

// Takes the row for this process: false where another was quicker, or where the owner seen is alive or newer.
bool take(Owner& owner, const OwnerSeen& seen, std::uint64_t incarnation);

// Gives it back if it is this process's under this incarnation; the incarnation stays known.
void give_back(Owner& owner, std::uint64_t incarnation);

// What the row's name is while this process has it.
std::uint64_t own_name(std::uint64_t incarnation);

}  // namespace samovar
