// Arithmetic on the chunks of a center: one pass over memory each, one rounding per operation.
//
// What is read may be written by another member at the same moment: by one without locks, or because the slot has
// become another's spare. Elements are then whole, as aligned words are on every machine that this compiles for, and
// what was made of a chunk that changed is thrown away. That is no business of the race detector: under a sanitizer
// every access is a relaxed atomic one, and what orders chunks is checked as everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace samovar::center {

// out = c + d
void add(float* out, const float* c, const float* d, std::size_t size);
// v' = momentum * v + d;  out = c + v'
void add_momentum(float* out, float* out_v, const float* c, const float* v, const float* d, std::size_t size,
                  float momentum);
// out = c + rate * (x - c)
void move(float* out, const float* c, const float* x, std::size_t size, float rate);
// d = rate * (x - c);  out = c + d;  moved = x - d
void exchange(float* out, float* moved, const float* c, const float* x, std::size_t size, float rate);
// x = x - rate * (x - c)
void pull(float* x, const float* c, std::size_t size, float rate);

// The same in place: c = c + d;  v = momentum * v + d, c = c + v;  d = rate * (x - c), x = x - d, c = c + d. In blocks,
// each as a whole; false where one would not be finite and the center does not take any
// number: it stays, and so do those behind it.
bool add_in_place(float* c, const float* d, std::size_t size, bool takes_any);
bool add_momentum_in_place(float* c, float* v, const float* d, std::size_t size, float momentum, bool takes_any);
bool exchange_in_place(float* x, float* c, std::size_t size, float rate, bool takes_any);

// Into a member's own memory; `streams` past the caches, for more than they hold.
void copy_out(float* destination, const float* source, std::size_t size, bool streams);
void copy_in(float* destination, const float* source, std::size_t size);
void copy_words(std::uint64_t* destination, const std::uint64_t* source, std::size_t count);
std::uint64_t load_word(const std::uint64_t* word);
void store_word(std::uint64_t* word, std::uint64_t value);

}  // namespace samovar::center
