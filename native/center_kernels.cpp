#include "center_kernels.hpp"

#include <algorithm>
#include <cstring>

#include "kernels.hpp"
#include "vectorized.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace samovar::center {
namespace {

// A word of 4 or 8 bytes that others may write: whole, and ordered with nothing.
#if defined(SAMOVAR_SANITIZE)
template <typename T>
T load(const T* place) {
  T value;
  __atomic_load(place, &value, __ATOMIC_RELAXED);
  return value;
}

template <typename T>
void store(T* place, T value) {
  __atomic_store(place, &value, __ATOMIC_RELAXED);
}
#else
template <typename T>
SAMOVAR_INLINE T load(const T* place) {
  return *place;
}

template <typename T>
SAMOVAR_INLINE void store(T* place, T value) {
  *place = value;
}
#endif

#if defined(__SSE2__) && !defined(SAMOVAR_SANITIZE)
constexpr std::size_t kLineFloats = 16;
// Hardware fetches ahead within a page alone: from several at once it waits a quarter less for memory.
constexpr std::size_t kPageFloats = 1024, kPages = 4;

SAMOVAR_INLINE void stream_line(float* destination, const float* source) {
  for (std::size_t part = 0; part < kLineFloats; part += 4)
    _mm_stream_ps(destination + part, _mm_loadu_ps(source + part));
}

void stream_out(float* destination, const float* source, std::size_t size) {
  std::size_t i = 0;
  while (i < size && reinterpret_cast<std::uintptr_t>(destination + i) % (kLineFloats * sizeof(float)) != 0) {
    destination[i] = source[i];
    ++i;
  }
  for (; i + kPages * kPageFloats <= size; i += kPages * kPageFloats) {
    for (std::size_t line = i; line < i + kPageFloats; line += kLineFloats)
      for (std::size_t page = 0; page < kPages; ++page)
        stream_line(destination + line + page * kPageFloats, source + line + page * kPageFloats);
  }
  for (; i + kLineFloats <= size; i += kLineFloats) stream_line(destination + i, source + i);
  _mm_sfence();
  for (; i < size; ++i) destination[i] = source[i];
}
#endif

constexpr std::size_t kBlock = 256;

template <typename Change>
bool in_blocks(std::size_t size, Change change) {
  for (std::size_t start = 0; start < size; start += kBlock)
    if (!change(start, std::min(kBlock, size - start))) return false;
  return true;
}

}  // namespace

SAMOVAR_VECTORIZED void add(float* __restrict out, const float* __restrict c, const float* __restrict d,
                            std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) store(out + i, load(c + i) + d[i]);
}

SAMOVAR_VECTORIZED void add_momentum(float* __restrict out, float* __restrict out_v, const float* __restrict c,
                                     const float* __restrict v, const float* __restrict d, std::size_t size,
                                     float momentum) {
  for (std::size_t i = 0; i < size; ++i) {
    const float speed = momentum * load(v + i) + d[i];
    store(out_v + i, speed);
    store(out + i, load(c + i) + speed);
  }
}

SAMOVAR_VECTORIZED void move(float* __restrict out, const float* __restrict c, const float* __restrict x,
                             std::size_t size, float rate) {
  for (std::size_t i = 0; i < size; ++i) {
    const float center = load(c + i);
    store(out + i, center + rate * (x[i] - center));
  }
}

SAMOVAR_VECTORIZED void exchange(float* __restrict out, float* __restrict moved, const float* __restrict c,
                                 const float* __restrict x, std::size_t size, float rate) {
  for (std::size_t i = 0; i < size; ++i) {
    const float center = load(c + i);
    const float step = rate * (x[i] - center);
    moved[i] = x[i] - step;
    store(out + i, center + step);
  }
}

SAMOVAR_VECTORIZED void pull(float* __restrict x, const float* __restrict c, std::size_t size, float rate) {
  for (std::size_t i = 0; i < size; ++i) x[i] = x[i] - rate * (x[i] - load(c + i));
}

// A block is made beside the center: what counts has been looked at, and what others add meanwhile is lost seldom.
bool add_in_place(float* c, const float* d, std::size_t size, bool takes_any) {
  float made[kBlock];
  return in_blocks(size, [&](std::size_t i, std::size_t count) {
    add(made, c + i, d + i, count);
    if (!takes_any && !all_finite(made, count)) return false;
    copy_in(c + i, made, count);
    return true;
  });
}

bool add_momentum_in_place(float* c, float* v, const float* d, std::size_t size, float momentum, bool takes_any) {
  float made[kBlock], made_v[kBlock];
  return in_blocks(size, [&](std::size_t i, std::size_t count) {
    add_momentum(made, made_v, c + i, v + i, d + i, count, momentum);
    if (!takes_any && !(all_finite(made, count) && all_finite(made_v, count))) return false;
    copy_in(v + i, made_v, count);
    copy_in(c + i, made, count);
    return true;
  });
}

bool exchange_in_place(float* x, float* c, std::size_t size, float rate, bool takes_any) {
  float made[kBlock], moved[kBlock];
  return in_blocks(size, [&](std::size_t i, std::size_t count) {
    exchange(made, moved, c + i, x + i, count, rate);
    if (!takes_any && !all_finite(made, count)) return false;
    std::memcpy(x + i, moved, count * sizeof(float));
    copy_in(c + i, made, count);
    return true;
  });
}

#if defined(SAMOVAR_SANITIZE)
void copy_out(float* destination, const float* source, std::size_t size, bool) {
  for (std::size_t i = 0; i < size; ++i) destination[i] = load(source + i);
}

void copy_in(float* destination, const float* source, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) store(destination + i, load(source + i));
}
#else
void copy_out(float* destination, const float* source, std::size_t size, [[maybe_unused]] bool streams) {
#if defined(__SSE2__)
  if (streams) return stream_out(destination, source, size);
#endif
  std::memcpy(destination, source, size * sizeof(float));
}

void copy_in(float* destination, const float* source, std::size_t size) {
  std::memcpy(destination, source, size * sizeof(float));
}
#endif

void copy_words(std::uint64_t* destination, const std::uint64_t* source, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) store(destination + i, load(source + i));
}

std::uint64_t load_word(const std::uint64_t* word) { return load(word); }

void store_word(std::uint64_t* word, std::uint64_t value) { store(word, value); }

}  // namespace samovar::center
