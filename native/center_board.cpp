#include "center_board.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

namespace samovar {
namespace {

constexpr std::uint64_t kMagic = 0x53414d4f56415242;  // "SAMOVARB"
constexpr std::uint64_t kFormat = 1;
constexpr std::uint64_t kMaxMembers = 1024;

struct alignas(kLineBytes) Header {
  std::uint64_t magic;
  std::uint64_t format;
  std::uint64_t max_members;
  alignas(kLineBytes) std::atomic<std::uint64_t> last_incarnation;
  alignas(kLineBytes) std::atomic<std::uint64_t> shared[kSharedWords];
};

std::size_t file_bytes(std::uint64_t max_members) { return sizeof(Header) + max_members * sizeof(BoardMember); }

void check_members(std::uint64_t max_members) {
  if (max_members == 0 || max_members > kMaxMembers)
    throw std::invalid_argument("a board has 1 to " + std::to_string(kMaxMembers) + " members, not " +
                                std::to_string(max_members));
}

}  // namespace

void CenterBoard::create(int fd, std::uint32_t max_members) {
  check_members(max_members);
  grow_file(fd, 0, file_bytes(max_members));
  const Mapping mapping(fd, 0, sizeof(Header));
  auto& header = *reinterpret_cast<Header*>(mapping.data());
  header.format = kFormat;
  header.max_members = max_members;
  header.magic = kMagic;
}

CenterBoard::CenterBoard(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) throw std::system_error(errno, std::generic_category(), "a board's file");
  std::uint64_t head[3] = {};
  if (pread(fd, head, sizeof head, 0) != static_cast<ssize_t>(sizeof head) || head[0] != kMagic)
    throw std::invalid_argument("the descriptor is not a board");
  if (head[1] != kFormat) throw std::invalid_argument("the board has format " + std::to_string(head[1]));
  check_members(head[2]);
  const int seals = fcntl(fd, F_GET_SEALS);
  if (static_cast<std::uint64_t>(status.st_size) != file_bytes(head[2]) || seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    throw std::invalid_argument("the board's file is not whole");
  max_members_ = static_cast<std::uint32_t>(head[2]);
  mapping_ = std::make_unique<Mapping>(fd, 0, file_bytes(head[2]));
}

BoardMember& CenterBoard::row(std::uint32_t index) const {
  if (index >= max_members_)
    throw std::out_of_range("no such member: " + std::to_string(index) + " of " + std::to_string(max_members_));
  return reinterpret_cast<BoardMember*>(mapping_->data() + sizeof(Header))[index];
}

std::uint64_t CenterBoard::join(std::uint32_t index) {
  Owner& owner = row(index).owner;
  const OwnerSeen seen = see(owner);
  if (seen.is_alive) return 0;
  const std::uint64_t incarnation = reinterpret_cast<Header*>(mapping_->data())->last_incarnation.fetch_add(1) + 1;
  if (incarnation > kMaxIncarnation) throw std::invalid_argument("the board has no more incarnations");
  return take(owner, seen, incarnation) ? incarnation : 0;
}

bool CenterBoard::resume(std::uint32_t index, std::uint64_t incarnation) {
  Owner& owner = row(index).owner;
  const OwnerSeen seen = see(owner);
  return incarnation != 0 && seen.incarnation == incarnation && take(owner, seen, incarnation);
}

bool CenterBoard::post(std::uint32_t index, std::uint64_t incarnation, const std::uint64_t* words) {
  BoardMember& member = row(index);
  if (member.owner.name.load(std::memory_order_acquire) != own_name(incarnation)) return false;
  const std::uint64_t posts = member.posts.load(std::memory_order_relaxed) + 1;
  // Released each: a reader of one of them sees the new value of `posts`.
  for (std::uint32_t i = 0; i < kPostWords; ++i) member.words[posts & 1][i].store(words[i], std::memory_order_release);
  member.posts.store(posts, std::memory_order_release);
  return true;
}

void CenterBoard::read(std::uint32_t index, std::uint64_t* words) const {
  const BoardMember& member = row(index);
  for (;;) {
    const std::uint64_t posts = member.posts.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < kPostWords; ++i)
      words[i] = member.words[posts & 1][i].load(std::memory_order_acquire);
    if (member.posts.load(std::memory_order_relaxed) == posts) return;
  }
}

std::atomic<std::uint64_t>& CenterBoard::shared(std::uint32_t word) const {
  if (word >= kSharedWords) throw std::out_of_range("no such shared word: " + std::to_string(word));
  return reinterpret_cast<Header*>(mapping_->data())->shared[word];
}

}  // namespace samovar
