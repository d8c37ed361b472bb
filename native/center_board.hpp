// The board of a box: who its members are and what each tells of itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "owner.hpp"
#include "window.hpp"

namespace samovar {

inline constexpr std::uint32_t kPostWords = 16;
inline constexpr std::uint32_t kSharedWords = 16;

// Two copies: the one that `posts` names is whole, the other is being written. So what is read is never torn, and what
// a killed writer leaves is its last whole post.
struct alignas(kLineBytes) BoardMember {
  Owner owner;
  std::atomic<std::uint64_t> posts;
  std::atomic<std::uint64_t> words[2][kPostWords];
};

class CenterBoard {
 public:
  // Fills an empty file. Throws std::invalid_argument, or std::system_error if memory is short.
  static void create(int fd, std::uint32_t max_members);
  // Throws std::invalid_argument where the file is not a board, or not a whole one.
  explicit CenterBoard(int fd);

  std::uint32_t max_members() const { return max_members_; }
  OwnerSeen seen(std::uint32_t index) const { return see(row(index).owner); }
  // Takes the row for this process; its incarnation, a new one, or 0 where somebody living has the row.
  std::uint64_t join(std::uint32_t index);
  // Takes the row again under the incarnation that it has, which nobody living may have.
  bool resume(std::uint32_t index, std::uint64_t incarnation);
  void leave(std::uint32_t index, std::uint64_t incarnation) { give_back(row(index).owner, incarnation); }
  // False where the row is not this process's under this incarnation. One thread at a time posts to a row.
  bool post(std::uint32_t index, std::uint64_t incarnation, const std::uint64_t* words);
  void read(std::uint32_t index, std::uint64_t* words) const;
  // Words that all share, 0 at the start.
  std::atomic<std::uint64_t>& shared(std::uint32_t word) const;

 private:
  BoardMember& row(std::uint32_t index) const;

  std::unique_ptr<Mapping> mapping_;
  std::uint32_t max_members_;
};

}  // namespace samovar
