// Lossy forms of float32 values for a wire, which keep at home what a message leaves out.
//
// All numbers are little-endian, a block is kBlock elements, the last may be shorter. A message of `count` elements:
//   bf16   uint16 x count: the upper half of each float32, rounded to the nearest, ties to even
//   int8   float32 x blocks: the scale of each, max|v| / 127; int8 x count: v / scale, rounded likewise
//   int4   float32 x blocks: the scale of each, max|v| / 7; ceil(count / 2) bytes: v / scale, rounded likewise, and 8
//          added to it, that of element i in the lower half of byte i / 2 for even i, else in the upper half
//   top-k  uint32 x k: the indices of the k = ceil(count / 100) largest |v|, ascending, of equal ones the first;
//          float32 x k: their values
//   1-bit  (float32, float32) x blocks: the mean of the values without, and of those with the sign bit;
//          ceil(count / 8) bytes: the sign bits, that of element i in bit i % 8 of byte i / 8
// and zeros up to a multiple of 4 bytes. What a message becomes again depends on nothing but its bytes.
//
// A value that is not finite is never hidden: bf16 and top-k carry it, the others make its block NaN. Top-k takes
// it for larger than any other; of more than k such the first are sent. Nothing of it stays in the residual.
#pragma once

#include <cstddef>
#include <cstdint>

namespace samovar::codec {

enum class Kind : std::uint8_t { kBf16, kInt8, kInt4, kTopK, kOneBit };

inline constexpr std::size_t kBlock = 1024;
inline constexpr std::size_t kElementsPerSent = 100;  // of top-k

// Bytes of the message of `count` elements. Never more than those of its parts together.
std::size_t message_bytes(Kind kind, std::size_t count);

// v = source + residual; message = that of v; residual = v - what the message becomes. Only the sum rounds, but for
// 1-bit, where the difference does too; a block of int8 or int4 whose scale would be below the smallest normal number
// is sent as zeros.
void encode(Kind kind, const float* source, float* residual, std::byte* message, std::size_t count);

// values = (messages[0] + messages[1]) + ..., or with `adds` ((values + messages[0]) + messages[1]) + ...
// Throws std::out_of_range where a message of top-k names an element that is not there.
void decode(Kind kind, const std::byte* const* messages, std::size_t num_messages, float* values, std::size_t count,
            bool adds);

}  // namespace samovar::codec
