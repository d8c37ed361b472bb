// The memory behind a center: an anonymous file that every member maps.
//
//   header | a row per member | a word per chunk | slots
//
// A slot holds one chunk whole: how many updates it has, the last update of every member, the values c and, where
// asked for, the velocity v. A chunk's word names the slot that holds it now; every member owns one more slot, its
// spare. An update is made in the spare and swapped in by one compare-and-swap of the chunk's word, then the slot that
// held the chunk is the spare. So a chunk is whole at every moment. A member that is stopped or killed leaves nothing
// half done and does not delay the others.
//
// Nothing in the file is trusted: sizes are checked once against the file's own, numbers of slots at each use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "owner.hpp"
#include "window.hpp"

namespace samovar {

struct CenterShape {
  std::uint64_t num_elements;
  std::uint64_t chunk_elements;
  std::uint32_t max_members;
  bool has_velocity;
  // Without: every update changes the chunk where it is, and none waits or counts on any other.
  bool has_locks;
  // With: values may become infinite or no numbers.
  bool takes_any = false;
};

// The last update of one member that a chunk holds. `stamp` is another one for each swap of that member.
struct CenterEntry {
  std::uint64_t incarnation;
  std::uint64_t sequence;
  std::uint64_t version;
  std::uint64_t stamp;
};

struct CenterSlotHead {
  std::uint64_t version;
};

// What is left of a swap when its member dies in it: enough to tell which of two slots is the spare.
struct alignas(kLineBytes) CenterRow {
  Owner owner;
  std::atomic<std::uint64_t> stamp;
  std::atomic<std::uint32_t> spare;
  std::atomic<std::uint32_t> swapping;  // 1 while the three below count
  std::atomic<std::uint32_t> old_slot;
  std::atomic<std::uint64_t> chunk;
};

class CenterFile {
 public:
  // Fills an empty file. Throws std::invalid_argument for sizes that cannot be, std::system_error if memory is short.
  static void create(int fd, const CenterShape& shape);
  // Throws std::invalid_argument where the file is not a center, or not a whole one.
  explicit CenterFile(int fd);

  const CenterShape& shape() const { return shape_; }
  std::uint64_t num_chunks() const { return num_chunks_; }
  std::uint64_t elements_of(std::uint64_t chunk) const;
  void prefault() const { mapping_->prefault(0, mapping_->size()); }

  CenterRow& row(std::uint32_t member) const;
  std::atomic<std::uint64_t>& word(std::uint64_t chunk) const { return words_[chunk]; }
  // One more than the highest member that ever came. Slots hold entries of those alone.
  std::atomic<std::uint64_t>& members_used() const;

  // The slot that a word names; throws std::invalid_argument for one that there is not.
  std::uint32_t slot_of(std::uint64_t word) const;
  void check_slot(std::uint64_t slot) const;
  CenterSlotHead& head(std::uint32_t slot) const;
  CenterEntry* entries(std::uint32_t slot) const;
  float* values(std::uint32_t slot) const;
  float* velocity(std::uint32_t slot) const;

 private:
  std::byte* slot_at(std::uint32_t slot) const { return slots_ + slot * slot_bytes_; }

  std::unique_ptr<Mapping> mapping_;
  CenterShape shape_;
  std::uint64_t num_chunks_;
  std::uint64_t num_slots_;
  std::uint64_t slot_bytes_;
  std::atomic<std::uint64_t>* words_;
  std::byte* slots_;
};

// The word after `word`, naming `slot`: no two words of a chunk's life are equal.
std::uint64_t next_word(std::uint64_t word, std::uint32_t slot);

}  // namespace samovar
