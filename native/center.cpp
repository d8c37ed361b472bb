#include "center.hpp"

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

#include "center_kernels.hpp"
#include "kernels.hpp"

namespace samovar {
namespace {

// A read of more than this goes past the caches: it would not find room in them.
constexpr std::uint64_t kStreamedElements = 2 << 20;
constexpr std::int64_t kGaveUp = -1;  // what no version is
constexpr std::int64_t kTooLate = -2;
constexpr std::size_t kEntryWords = sizeof(CenterEntry) / sizeof(std::uint64_t);

bool has_ended(const Patience& patience) {
  if (patience.gives_up != nullptr && patience.gives_up->load(std::memory_order_relaxed)) return true;
  return patience.deadline_ns != kNoDeadline && monotonic_ns() >= patience.deadline_ns;
}

// Nothing of what was read between the load of `word` and here is older or newer than it, if this is true. The thread
// sanitizer knows no fences; what is read there is atomic under it.
bool is_still(const std::atomic<std::uint64_t>& place, std::uint64_t word) {
#if !defined(SAMOVAR_SANITIZE)
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
  return place.load(std::memory_order_relaxed) == word;
}

[[noreturn]] void refuse(std::uint64_t chunk) {
  throw NotFinite("chunk " + std::to_string(chunk) + " would not be finite");
}

CenterEntry load_entry(const CenterEntry* entry) {
  CenterEntry loaded;
  loaded.incarnation = center::load_word(&entry->incarnation);
  loaded.sequence = center::load_word(&entry->sequence);
  loaded.version = center::load_word(&entry->version);
  loaded.stamp = center::load_word(&entry->stamp);
  return loaded;
}

void store_entry(CenterEntry* place, const CenterEntry& entry) {
  center::store_word(&place->incarnation, entry.incarnation);
  center::store_word(&place->sequence, entry.sequence);
  center::store_word(&place->version, entry.version);
  center::store_word(&place->stamp, entry.stamp);
}

}  // namespace

// The slot that a chunk is in, the one that it is made in, and where its elements lie in the member's arrays.
struct Chunk {
  const CenterFile& file;
  std::uint32_t slot;
  std::uint32_t spare;
  std::uint64_t start;
  std::uint64_t size;

  const float* c() const { return file.values(slot); }
  const float* v() const { return file.velocity(slot); }
  float* new_c() const { return file.values(spare); }
  float* new_v() const { return file.velocity(spare); }
  bool may_count() const {
    if (file.shape().takes_any) return true;
    return all_finite(new_c(), size) && (!file.shape().has_velocity || all_finite(new_v(), size));
  }
  void keep_velocity() const {
    if (file.shape().has_velocity) center::copy_in(new_v(), v(), size);
  }
};

// How one operation makes a chunk: in the spare, and what is left once that counts; or where it is (`spare` is `slot`).
struct Center::Update {
  std::uint64_t first_element = 0;

  virtual ~Update() = default;
  virtual void make(const Chunk& chunk) = 0;
  virtual void finish(const Chunk&) {}
  // False where a part of it would not be finite: that part, and all behind it, stay.
  virtual bool change(const Chunk& chunk) = 0;
};

struct Center::Accumulate final : Center::Update {
  const float* difference;
  float momentum;

  Accumulate(const float* difference, float momentum) : difference(difference), momentum(momentum) {}
  void make(const Chunk& chunk) override {
    const float* d = difference + chunk.start;
    if (momentum != 0)
      return center::add_momentum(chunk.new_c(), chunk.new_v(), chunk.c(), chunk.v(), d, chunk.size, momentum);
    center::add(chunk.new_c(), chunk.c(), d, chunk.size);
    chunk.keep_velocity();
  }
  bool change(const Chunk& chunk) override {
    const float* d = difference + chunk.start;
    const bool any = chunk.file.shape().takes_any;
    if (momentum != 0)
      return center::add_momentum_in_place(chunk.new_c(), chunk.new_v(), d, chunk.size, momentum, any);
    return center::add_in_place(chunk.new_c(), d, chunk.size, any);
  }
};

// x waits until c counts: `finish` finds the old c in what is the spare by then.
struct Center::Exchange final : Center::Update {
  float* weights;
  float rate;

  Exchange(float* weights, float rate) : weights(weights), rate(rate) {}
  void make(const Chunk& chunk) override {
    center::move(chunk.new_c(), chunk.c(), weights + chunk.start, chunk.size, rate);
    chunk.keep_velocity();
  }
  void finish(const Chunk& chunk) override { center::pull(weights + chunk.start, chunk.c(), chunk.size, rate); }
  bool change(const Chunk& chunk) override {
    return center::exchange_in_place(weights + chunk.start, chunk.new_c(), chunk.size, rate, chunk.file.shape().takes_any);
  }
};

struct Center::ExchangeInto final : Center::Update {
  const float* weights;
  float* moved;
  float rate;

  ExchangeInto(const float* weights, float* moved, float rate) : weights(weights), moved(moved), rate(rate) {}
  void make(const Chunk& chunk) override {
    center::exchange(chunk.new_c(), moved + chunk.start, chunk.c(), weights + chunk.start, chunk.size, rate);
    chunk.keep_velocity();
  }
  bool change(const Chunk& chunk) override {
    center::copy_in(moved + chunk.start, weights + chunk.start, chunk.size);
    return center::exchange_in_place(moved + chunk.start, chunk.new_c(), chunk.size, rate, chunk.file.shape().takes_any);
  }
};

Center::Center(std::shared_ptr<CenterFile> file) : file_(std::move(file)) {}

Center::~Center() { detach(); }

void Center::attach(std::uint32_t member, std::uint64_t incarnation) {
  if (row_ != nullptr) throw std::logic_error("the center is attached already");
  if (incarnation == 0 || incarnation > kMaxIncarnation)
    throw std::invalid_argument("no such incarnation: " + std::to_string(incarnation));
  CenterRow& row = file_->row(member);
  const OwnerSeen seen = see(row.owner);
  if (seen.incarnation > incarnation)
    throw Fenced("incarnation " + std::to_string(seen.incarnation) + " of member " + std::to_string(member) +
                 " is here, incarnation " + std::to_string(incarnation) + " is over");
  if (!take(row.owner, seen, incarnation))
    throw std::system_error(EBUSY, std::generic_category(),
                            "member " + std::to_string(member) + " is process " + std::to_string(seen.process_id));
  row_ = &row;
  member_ = member;
  incarnation_ = incarnation;
  name_ = own_name(incarnation);
  auto& used = file_->members_used();
  for (std::uint64_t known = used.load(); known <= member;)
    if (used.compare_exchange_weak(known, member + 1)) break;
  recover_spare();
  file_->prefault();
}

void Center::detach() {
  if (row_ != nullptr) give_back(row_->owner, incarnation_);
  row_ = nullptr;
}

// A member that died in a swap may have left both slots named: the chunk's own entry tells whether it was made.
void Center::recover_spare() {
  if (row_->swapping.load(std::memory_order_acquire) == 0) return;
  const std::uint64_t chunk = row_->chunk.load(), stamp = row_->stamp.load();
  if (chunk >= num_chunks()) throw std::invalid_argument("the center is damaged: no such chunk: " + std::to_string(chunk));
  file_->check_slot(row_->old_slot.load());
  if (entry(chunk, member_).stamp == stamp) row_->spare.store(row_->old_slot.load());
  row_->swapping.store(0, std::memory_order_release);
}

void Center::check_row() const {
  if (row_ == nullptr) throw std::logic_error("the center is not attached: nobody may change it");
  if (row_->owner.name.load(std::memory_order_acquire) != name_)
    throw Fenced("member " + std::to_string(member_) + " is another process by now");
}

CenterEntry Center::entry(std::uint64_t chunk, std::uint32_t member) const {
  if (chunk >= num_chunks()) throw std::out_of_range("no such chunk: " + std::to_string(chunk));
  (void)file_->row(member);  // checks the number
  const auto& place = file_->word(chunk);
  for (;;) {
    const std::uint64_t word = place.load(std::memory_order_acquire);
    const CenterEntry found = load_entry(file_->entries(file_->slot_of(word)) + member);
    if (is_still(place, word)) return found;
  }
}

bool Center::write(ChunkRange range, const float* values, bool is_velocity, Patience patience) {
  const std::uint64_t last = range.first + range.count - 1;
  if (!file_->shape().takes_any && !all_finite(values, (range.count - 1) * file_->shape().chunk_elements + file_->elements_of(last)))
    throw NotFinite("the values are not finite");
  for (std::uint64_t chunk = range.first; chunk < range.first + range.count; ++chunk) {
    while (!try_write(chunk, values, is_velocity))
      if (has_ended(patience)) return false;
    values += file_->elements_of(chunk);
  }
  return true;
}

// In place only where nobody swaps: what was the chunk's slot may be another member's spare before the copy is over.
bool Center::try_write(std::uint64_t chunk, const float* values, bool is_velocity) {
  const std::uint64_t word = file_->word(chunk).load(std::memory_order_acquire), size = file_->elements_of(chunk);
  const std::uint32_t slot = file_->slot_of(word);
  if (row_ == nullptr || !file_->shape().has_locks) {
    center::copy_in(is_velocity ? file_->velocity(slot) : file_->values(slot), values, size);
    return true;
  }
  check_row();
  const std::uint32_t spare = row_->spare.load(std::memory_order_relaxed);
  file_->check_slot(spare);
  const CenterEntry own = load_entry(file_->entries(slot) + member_);
  const std::uint64_t stamp = fill_spare_head(slot, own, center::load_word(&file_->head(slot).version));
  center::copy_in(file_->values(spare), is_velocity ? file_->values(slot) : values, size);
  if (file_->shape().has_velocity)
    center::copy_in(file_->velocity(spare), is_velocity ? values : file_->velocity(slot), size);
  return swap(chunk, word, stamp);
}

bool Center::read(ChunkRange range, float* destination, bool is_velocity, std::int64_t* versions,
                  Patience patience) const {
  const bool streams = num_elements() > kStreamedElements;
  for (std::uint64_t chunk = range.first; chunk < range.first + range.count; ++chunk) {
    const auto& place = file_->word(chunk);
    for (;;) {
      if (has_ended(patience)) return false;
      const std::uint64_t word = place.load(std::memory_order_acquire);
      const std::uint32_t slot = file_->slot_of(word);
      *versions = static_cast<std::int64_t>(center::load_word(&file_->head(slot).version));
      const float* source = is_velocity ? file_->velocity(slot) : file_->values(slot);
      center::copy_out(destination, source, file_->elements_of(chunk), streams);
      if (is_still(place, word)) break;
    }
    destination += file_->elements_of(chunk);
    ++versions;
  }
  return true;
}

bool Center::accumulate(ChunkRange range, std::uint64_t sequence, const float* difference, float momentum,
                        std::int64_t* versions, Patience patience) {
  if (momentum != 0 && !file_->shape().has_velocity) throw std::invalid_argument("the center has no velocity");
  Accumulate update(difference, momentum);
  return this->update(update, range, sequence, versions, patience);
}

bool Center::exchange(ChunkRange range, std::uint64_t sequence, float* weights, float rate, std::int64_t* versions,
                      Patience patience) {
  Exchange update(weights, rate);
  return this->update(update, range, sequence, versions, patience);
}

bool Center::exchange_into(ChunkRange range, std::uint64_t sequence, const float* weights, float* moved, float rate,
                           std::int64_t* versions, Patience patience) {
  ExchangeInto update(weights, moved, rate);
  return this->update(update, range, sequence, versions, patience);
}

// Members begin at different chunks, or they would all want the same ones all the time.
bool Center::update(Update& update, ChunkRange range, std::uint64_t sequence, std::int64_t* versions,
                    Patience patience) {
  check_row();
  if (sequence == 0) throw std::invalid_argument("sequences begin with 1");
  update.first_element = range.first * file_->shape().chunk_elements;
  const std::uint64_t first = range.count * member_ / file_->shape().max_members;
  for (std::uint64_t i = 0; i < range.count; ++i) {
    const std::uint64_t place = (first + i) % range.count;
    versions[place] = update_chunk(update, sequence, range.first + place, patience);
    if (versions[place] == kGaveUp) return false;
  }
  return true;
}

std::int64_t Center::update_chunk(Update& update, std::uint64_t sequence, std::uint64_t chunk, Patience patience) {
  for (;;) {
    if (has_ended(patience)) return kGaveUp;
    check_row();
    const std::uint64_t began_ns = monotonic_ns();
    const std::int64_t version =
        file_->shape().has_locks ? try_swap(update, sequence, chunk) : change_in_place(update, sequence, chunk);
    if (version != kTooLate) return version;
    lost_ns_.fetch_add(monotonic_ns() - began_ns, std::memory_order_relaxed);
  }
}

bool Center::holds(const CenterEntry& entry, std::uint64_t sequence) const {
  return entry.incarnation > incarnation_ || (entry.incarnation == incarnation_ && entry.sequence >= sequence);
}

std::int64_t Center::try_swap(Update& update, std::uint64_t sequence, std::uint64_t chunk) {
  auto& place = file_->word(chunk);
  const std::uint64_t word = place.load(std::memory_order_acquire);
  const std::uint32_t slot = file_->slot_of(word), spare = row_->spare.load(std::memory_order_relaxed);
  file_->check_slot(spare);
  const CenterEntry seen = load_entry(file_->entries(slot) + member_);
  const std::uint64_t version = center::load_word(&file_->head(slot).version) + 1;
  if (holds(seen, sequence)) return is_still(place, word) ? static_cast<std::int64_t>(seen.version) : kTooLate;
  const std::uint64_t stamp = fill_spare_head(slot, {incarnation_, sequence, version, 0}, version);
  const Chunk made{*file_, slot, spare, chunk * file_->shape().chunk_elements - update.first_element,
                   file_->elements_of(chunk)};
  update.make(made);
  if (!made.may_count()) {
    // What is read of a chunk that another changes meanwhile may be anything.
    if (is_still(place, word)) refuse(chunk);
    return kTooLate;
  }
  if (!swap(chunk, word, stamp)) return kTooLate;
  update.finish(made);
  return static_cast<std::int64_t>(version);
}

// All but the values; the stamp that this member's entry, `own`, gets.
std::uint64_t Center::fill_spare_head(std::uint32_t slot, CenterEntry own, std::uint64_t version) {
  const std::uint32_t spare = row_->spare.load(std::memory_order_relaxed);
  // Read after the chunk's word, so every member with an entry in the slot is counted.
  const std::uint64_t num_entries = std::min<std::uint64_t>(file_->members_used().load(), file_->shape().max_members);
  center::copy_words(reinterpret_cast<std::uint64_t*>(file_->entries(spare)),
                     reinterpret_cast<const std::uint64_t*>(file_->entries(slot)), num_entries * kEntryWords);
  own.stamp = row_->stamp.load(std::memory_order_relaxed) + 1;
  store_entry(file_->entries(spare) + member_, own);
  center::store_word(&file_->head(spare).version, version);
  return own.stamp;
}

// The note of what is swapped is whole before it counts, and counts until the spare is known again: a member killed
// anywhere in here leaves enough to tell its spare.
bool Center::swap(std::uint64_t chunk, std::uint64_t word, std::uint64_t stamp) {
  const std::uint32_t spare = row_->spare.load(std::memory_order_relaxed), slot = file_->slot_of(word);
  row_->chunk.store(chunk, std::memory_order_release);
  row_->old_slot.store(slot, std::memory_order_release);
  row_->stamp.store(stamp, std::memory_order_release);
  row_->swapping.store(1, std::memory_order_release);
  const bool is_done = file_->word(chunk).compare_exchange_strong(word, next_word(word, spare));
  if (is_done) row_->spare.store(slot, std::memory_order_release);
  row_->swapping.store(0, std::memory_order_release);
  return is_done;
}

// Every element is written whole, the chunk is not: what others write meanwhile may be lost.
std::int64_t Center::change_in_place(Update& update, std::uint64_t sequence, std::uint64_t chunk) {
  const std::uint32_t slot = file_->slot_of(file_->word(chunk).load(std::memory_order_acquire));
  CenterEntry* entry = file_->entries(slot) + member_;
  const CenterEntry seen = load_entry(entry);
  if (holds(seen, sequence)) return static_cast<std::int64_t>(seen.version);
  const Chunk place{*file_, slot, slot, chunk * file_->shape().chunk_elements - update.first_element,
                    file_->elements_of(chunk)};
  if (!update.change(place)) refuse(chunk);
  auto& version = *reinterpret_cast<std::atomic<std::uint64_t>*>(&file_->head(slot).version);
  const std::uint64_t made = version.fetch_add(1, std::memory_order_relaxed) + 1;
  store_entry(entry, {incarnation_, sequence, made, seen.stamp});
  return static_cast<std::int64_t>(made);
}

}  // namespace samovar
