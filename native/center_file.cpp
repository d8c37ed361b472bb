#include "center_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <system_error>

namespace samovar {
namespace {

constexpr std::uint64_t kMagic = 0x53414d4f56415243;  // "SAMOVARC"
constexpr std::uint64_t kFormat = 1;
constexpr unsigned kSlotBits = 20;
constexpr std::uint64_t kMaxSlots = std::uint64_t{1} << kSlotBits;
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;
constexpr std::uint64_t kMaxChunkElements = std::uint64_t{1} << 24;
constexpr std::uint32_t kMaxMembers = 1024;
constexpr std::uint64_t kHasVelocity = 1, kHasLocks = 2, kTakesAny = 4;

struct alignas(kLineBytes) Header {
  std::uint64_t magic;
  std::uint64_t format;
  std::uint64_t num_elements;
  std::uint64_t chunk_elements;
  std::uint64_t max_members;
  std::uint64_t flags;
  std::uint64_t file_bytes;
  std::uint64_t hash;  // of the above and of the sizes of what follows
  alignas(kLineBytes) std::atomic<std::uint64_t> members_used;
};

// Where everything lies, from the shape alone.
struct Places {
  std::uint64_t num_chunks, num_slots, rows, words, slots, slot_bytes, file_bytes;
};

std::uint64_t lines(std::uint64_t size) { return (size + kLineBytes - 1) / kLineBytes * kLineBytes; }

std::uint64_t entries_bytes(const CenterShape& shape) { return lines(shape.max_members * sizeof(CenterEntry)); }

std::uint64_t array_bytes(const CenterShape& shape) { return lines(shape.chunk_elements * sizeof(float)); }

void check_shape(const CenterShape& shape) {
  if (shape.num_elements == 0 || shape.num_elements > kMaxElements)
    throw std::invalid_argument("a center has 1 to " + std::to_string(kMaxElements) + " elements, not " +
                                std::to_string(shape.num_elements));
  if (shape.chunk_elements == 0 || shape.chunk_elements > kMaxChunkElements)
    throw std::invalid_argument("a chunk has 1 to " + std::to_string(kMaxChunkElements) + " elements, not " +
                                std::to_string(shape.chunk_elements));
  if (shape.max_members == 0 || shape.max_members > kMaxMembers)
    throw std::invalid_argument("a center has 1 to " + std::to_string(kMaxMembers) + " members, not " +
                                std::to_string(shape.max_members));
  const std::uint64_t num_chunks = (shape.num_elements + shape.chunk_elements - 1) / shape.chunk_elements;
  if (num_chunks + shape.max_members > kMaxSlots)
    throw std::invalid_argument(std::to_string(num_chunks) + " chunks are too many, choose larger ones");
}

// Of a shape that was checked: no size below overflows.
Places places_of(const CenterShape& shape) {
  Places places{};
  places.num_chunks = (shape.num_elements + shape.chunk_elements - 1) / shape.chunk_elements;
  places.num_slots = places.num_chunks + shape.max_members;
  places.rows = lines(sizeof(Header));
  places.words = places.rows + shape.max_members * sizeof(CenterRow);
  places.slots = places.words + lines(places.num_chunks * sizeof(std::uint64_t));
  places.slot_bytes = lines(sizeof(CenterSlotHead)) + entries_bytes(shape) +
                      array_bytes(shape) * (shape.has_velocity ? 2 : 1);
  places.file_bytes = places.slots + places.num_slots * places.slot_bytes;
  return places;
}

std::uint64_t flags_of(const CenterShape& shape) {
  return (shape.has_velocity ? kHasVelocity : 0) | (shape.has_locks ? kHasLocks : 0) |
         (shape.takes_any ? kTakesAny : 0);
}

std::uint64_t hash_of(const CenterShape& shape) {
  const Places places = places_of(shape);
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, word by word
  for (const std::uint64_t word : {kFormat, shape.num_elements, shape.chunk_elements, std::uint64_t{shape.max_members},
                                   flags_of(shape), places.rows, places.words, places.slots, places.slot_bytes,
                                   places.file_bytes})
    hash = (hash ^ word) * 0x100000001b3u;
  return hash;
}

// The shape that the file's head tells, checked against the file's own size.
CenterShape shape_of(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) throw std::system_error(errno, std::generic_category(), "a center's file");
  Header header;
  const ssize_t size = pread(fd, static_cast<void*>(&header), sizeof header, 0);
  if (size != static_cast<ssize_t>(sizeof header) || header.magic != kMagic)
    throw std::invalid_argument("the descriptor is not a center");
  if (header.format != kFormat)
    throw std::invalid_argument("the center has format " + std::to_string(header.format) + ", not " +
                                std::to_string(kFormat));
  const auto max_members = static_cast<std::uint32_t>(std::min<std::uint64_t>(header.max_members, kMaxMembers + 1));
  const CenterShape shape{header.num_elements, header.chunk_elements, max_members, (header.flags & kHasVelocity) != 0,
                          (header.flags & kHasLocks) != 0, (header.flags & kTakesAny) != 0};
  check_shape(shape);
  if (header.hash != hash_of(shape)) throw std::invalid_argument("the center's head is damaged");
  if (static_cast<std::uint64_t>(status.st_size) != places_of(shape).file_bytes)
    throw std::invalid_argument("the center's file has " + std::to_string(status.st_size) + " bytes, not " +
                                std::to_string(places_of(shape).file_bytes));
  return shape;
}

// A file that can shrink under its mapping would end every member.
void check_seals(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    throw std::invalid_argument("the center's file is not sealed against shrinking");
}

// Without this, a file larger than the memory is filled until the kernel ends some process.
void check_memory(std::uint64_t bytes) {
  std::FILE* file = std::fopen("/proc/meminfo", "re");
  if (file == nullptr) return;
  unsigned long long available_kib = 0;
  bool is_known = false;
  for (char line[128]; !is_known && std::fgets(line, sizeof line, file) != nullptr;)
    is_known = std::sscanf(line, "MemAvailable: %llu", &available_kib) == 1;
  std::fclose(file);
  if (is_known && bytes / 1024 > available_kib)
    throw std::system_error(ENOMEM, std::generic_category(), "shared memory cannot be allocated");
}

}  // namespace

void CenterFile::create(int fd, const CenterShape& shape) {
  check_shape(shape);
  const Places places = places_of(shape);
  check_memory(places.file_bytes);
  grow_file(fd, 0, places.file_bytes);
  const Mapping mapping(fd, 0, places.slots);
  auto& header = *reinterpret_cast<Header*>(mapping.data());
  header.format = kFormat;
  header.num_elements = shape.num_elements;
  header.chunk_elements = shape.chunk_elements;
  header.max_members = shape.max_members;
  header.flags = flags_of(shape);
  header.file_bytes = places.file_bytes;
  header.hash = hash_of(shape);
  auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(mapping.data() + places.words);
  for (std::uint64_t chunk = 0; chunk < places.num_chunks; ++chunk) words[chunk].store(chunk);
  auto* rows = reinterpret_cast<CenterRow*>(mapping.data() + places.rows);
  for (std::uint32_t member = 0; member < shape.max_members; ++member)
    rows[member].spare.store(static_cast<std::uint32_t>(places.num_chunks + member));
  header.magic = kMagic;
}

CenterFile::CenterFile(int fd) : shape_(shape_of(fd)) {
  check_seals(fd);
  const Places places = places_of(shape_);
  num_chunks_ = places.num_chunks;
  num_slots_ = places.num_slots;
  slot_bytes_ = places.slot_bytes;
  mapping_ = std::make_unique<Mapping>(fd, 0, places.file_bytes);
  words_ = reinterpret_cast<std::atomic<std::uint64_t>*>(mapping_->data() + places.words);
  slots_ = mapping_->data() + places.slots;
}

std::uint64_t CenterFile::elements_of(std::uint64_t chunk) const {
  return std::min(shape_.chunk_elements, shape_.num_elements - chunk * shape_.chunk_elements);
}

CenterRow& CenterFile::row(std::uint32_t member) const {
  if (member >= shape_.max_members)
    throw std::out_of_range("no such member: " + std::to_string(member) + " of " + std::to_string(shape_.max_members));
  return reinterpret_cast<CenterRow*>(mapping_->data() + lines(sizeof(Header)))[member];
}

std::atomic<std::uint64_t>& CenterFile::members_used() const {
  return reinterpret_cast<Header*>(mapping_->data())->members_used;
}

std::uint32_t CenterFile::slot_of(std::uint64_t word) const {
  const std::uint64_t slot = word & (kMaxSlots - 1);
  check_slot(slot);
  return static_cast<std::uint32_t>(slot);
}

void CenterFile::check_slot(std::uint64_t slot) const {
  if (slot >= num_slots_) throw std::invalid_argument("the center is damaged: no such slot: " + std::to_string(slot));
}

CenterSlotHead& CenterFile::head(std::uint32_t slot) const { return *reinterpret_cast<CenterSlotHead*>(slot_at(slot)); }

CenterEntry* CenterFile::entries(std::uint32_t slot) const {
  return reinterpret_cast<CenterEntry*>(slot_at(slot) + lines(sizeof(CenterSlotHead)));
}

float* CenterFile::values(std::uint32_t slot) const {
  return reinterpret_cast<float*>(slot_at(slot) + lines(sizeof(CenterSlotHead)) + entries_bytes(shape_));
}

float* CenterFile::velocity(std::uint32_t slot) const { return values(slot) + array_bytes(shape_) / sizeof(float); }

std::uint64_t next_word(std::uint64_t word, std::uint32_t slot) {
  return ((word >> kSlotBits) + 1) << kSlotBits | slot;
}

}  // namespace samovar
