#include "codec_kernels.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "vectorized.hpp"

namespace samovar::codec {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffff;
constexpr std::uint32_t kInfinity = 0x7f800000;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
// Added and taken away again, it leaves of a small number what is nearest to it, ties to even.
constexpr float kRounder = 12582912.0f;
// Additions that go on side by side, so that the sum does not depend on the width of vectors.
constexpr std::size_t kLanes = 16;

SAMOVAR_INLINE std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

SAMOVAR_INLINE float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Of magnitudes as whole numbers, NaN is the largest and infinity next.
SAMOVAR_INLINE std::uint32_t magnitude(float value) { return bits_of(value) & kMagnitude; }

SAMOVAR_INLINE float finite_or_zero(float value) { return magnitude(value) < kInfinity ? value : 0.0f; }

std::size_t num_blocks(std::size_t count) { return (count + kBlock - 1) / kBlock; }

std::size_t num_sent(std::size_t count) { return (count + kElementsPerSent - 1) / kElementsPerSent; }

// residual = source + residual; the largest magnitude of them.
SAMOVAR_VECTORIZED std::uint32_t take_up(const float* __restrict source, float* __restrict residual,
                                         std::size_t count) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    residual[i] = source[i] + residual[i];
    largest = std::max(largest, magnitude(residual[i]));
  }
  return largest;
}

SAMOVAR_VECTORIZED void encode_bf16(const float* __restrict source, float* __restrict residual,
                                    std::uint16_t* __restrict halves, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = source[i] + residual[i];
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const std::uint32_t half = (bits & kMagnitude) > kInfinity ? (bits >> 16) | 0x40 : rounded;
    halves[i] = static_cast<std::uint16_t>(half);
    residual[i] = finite_or_zero(value - float_of(half << 16));
  }
}

SAMOVAR_VECTORIZED void decode_bf16(const std::uint16_t* __restrict halves, float* __restrict values,
                                    std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = float_of(static_cast<std::uint32_t>(halves[i]) << 16);
}

SAMOVAR_VECTORIZED void add_bf16(const std::uint16_t* __restrict halves, float* __restrict values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    values[i] = values[i] + float_of(static_cast<std::uint32_t>(halves[i]) << 16);
}

SAMOVAR_VECTORIZED void quantize(float* __restrict residual, std::int8_t* __restrict levels, float scale,
                                 std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float level = (residual[i] / scale + kRounder) - kRounder;
    levels[i] = static_cast<std::int8_t>(static_cast<std::int32_t>(level));
    residual[i] = finite_or_zero(residual[i] - level * scale);
  }
}

// Whole numbers from -`most` to `most`; returns their scale.
float encode_levels(const float* source, float* residual, std::int8_t* levels, float most, std::size_t count) {
  const std::uint32_t largest = take_up(source, residual, count);
  const bool is_finite = largest < kInfinity;
  const float scale = is_finite ? float_of(largest) / most : kNan;
  if (scale >= std::numeric_limits<float>::min()) {
    quantize(residual, levels, scale, count);
    return scale;
  }
  std::memset(levels, 0, count);
  if (!is_finite) std::fill_n(residual, count, 0.0f);
  return is_finite ? 0.0f : kNan;
}

SAMOVAR_VECTORIZED void decode_levels(const std::int8_t* __restrict levels, float* __restrict values, float scale,
                                      std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(levels[i]) * scale;
}

SAMOVAR_VECTORIZED void add_levels(const std::int8_t* __restrict levels, float* __restrict values, float scale,
                                   std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = values[i] + static_cast<float>(levels[i]) * scale;
}

SAMOVAR_VECTORIZED void pack_halves(const std::int8_t* __restrict levels, std::uint8_t* __restrict packed,
                                    std::size_t num_bytes) {
  for (std::size_t i = 0; i < num_bytes; ++i)
    packed[i] = static_cast<std::uint8_t>((levels[2 * i] + 8) | ((levels[2 * i + 1] + 8) << 4));
}

SAMOVAR_VECTORIZED void unpack_halves(const std::uint8_t* __restrict packed, std::int8_t* __restrict levels,
                                      std::size_t num_bytes) {
  for (std::size_t i = 0; i < num_bytes; ++i) {
    levels[2 * i] = static_cast<std::int8_t>((packed[i] & 15) - 8);
    levels[2 * i + 1] = static_cast<std::int8_t>((packed[i] >> 4) - 8);
  }
}

float encode_int4(const float* source, float* residual, std::uint8_t* packed, std::size_t count) {
  std::int8_t levels[kBlock];
  const float scale = encode_levels(source, residual, levels, 7.0f, count);
  if (count % 2 > 0) levels[count] = 0;
  pack_halves(levels, packed, (count + 1) / 2);
  return scale;
}

void decode_int4(const std::uint8_t* packed, float* values, float scale, std::size_t count, bool adds) {
  std::int8_t levels[kBlock];
  unpack_halves(packed, levels, (count + 1) / 2);
  (adds ? add_levels : decode_levels)(levels, values, scale, count);
}

// Sums of the values without the sign bit and of those with it, lane by lane, and how many have it.
struct SignSums {
  float sums[2][kLanes] = {};
  std::uint32_t num_negative[kLanes] = {};
};

SAMOVAR_INLINE void add_to_lane(SignSums& lanes, float value, std::size_t lane) {
  const std::uint32_t bits = bits_of(value), sign = bits >> 31, all_if_negative = 0u - sign;
  lanes.sums[0][lane] += float_of(bits & ~all_if_negative);
  lanes.sums[1][lane] += float_of(bits & all_if_negative);
  lanes.num_negative[lane] += sign;
}

SAMOVAR_VECTORIZED void add_by_sign(SignSums& found, const float* __restrict values, std::size_t count) {
  SignSums lanes;
  for (std::size_t i = 0; i + kLanes <= count; i += kLanes)
    for (std::size_t k = 0; k < kLanes; ++k) add_to_lane(lanes, values[i + k], k);
  for (std::size_t i = count - count % kLanes; i < count; ++i) add_to_lane(lanes, values[i], i % kLanes);
  found = lanes;
}

float mean_of(const float (&lanes)[kLanes], std::size_t count) {
  float sum = 0.0f;
  for (const float lane : lanes) sum += lane;
  return count > 0 ? sum / static_cast<float>(count) : 0.0f;
}

SAMOVAR_VECTORIZED void take_sign_means(float* __restrict residual, float positive, float negative,
                                        std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    residual[i] = residual[i] - (bits_of(residual[i]) >> 31 ? negative : positive);
}

SAMOVAR_VECTORIZED void take_signs(const float* __restrict values, std::uint8_t* __restrict signs,
                                   std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) signs[i] = static_cast<std::uint8_t>(bits_of(values[i]) >> 31);
}

void pack_signs(const float* values, std::uint8_t* packed, std::size_t count) {
  std::uint8_t signs[kBlock] = {};
  take_signs(values, signs, count);
  for (std::size_t i = 0; i < count; i += 8) {
    std::uint64_t eight;
    std::memcpy(&eight, signs + i, sizeof eight);
    packed[i / 8] = static_cast<std::uint8_t>((eight * 0x0102040810204080) >> 56);  // byte k to bit k
  }
}

void encode_one_bit(const float* source, float* residual, float* means, std::uint8_t* packed, std::size_t count) {
  const std::uint32_t largest = take_up(source, residual, count);
  SignSums found;
  add_by_sign(found, residual, count);
  pack_signs(residual, packed, count);
  std::size_t num_negative = 0;
  for (const std::uint32_t lane : found.num_negative) num_negative += lane;
  means[0] = mean_of(found.sums[0], count - num_negative);
  means[1] = mean_of(found.sums[1], num_negative);
  if (std::max({largest, magnitude(means[0]), magnitude(means[1])}) < kInfinity)
    return take_sign_means(residual, means[0], means[1], count);
  means[0] = means[1] = kNan;
  std::fill_n(residual, count, 0.0f);
}

// A byte for each element, not zero where its sign bit is set.
void unpack_signs(const std::uint8_t* packed, std::uint8_t* signs, std::size_t count) {
  for (std::size_t i = 0; i < count; i += 8) {
    const std::uint64_t eight = packed[i / 8] * std::uint64_t{0x0101010101010101} & 0x8040201008040201;
    std::memcpy(signs + i, &eight, sizeof eight);  // bit k in byte k
  }
}

SAMOVAR_VECTORIZED void decode_signs(float positive, float negative, const std::uint8_t* __restrict signs,
                                     float* __restrict values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = signs[i] ? negative : positive;
}

SAMOVAR_VECTORIZED void add_signs(float positive, float negative, const std::uint8_t* __restrict signs,
                                  float* __restrict values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = values[i] + (signs[i] ? negative : positive);
}

void decode_one_bit(const float* means, const std::uint8_t* packed, float* values, std::size_t count, bool adds) {
  std::uint8_t signs[kBlock];
  unpack_signs(packed, signs, count);
  (adds ? add_signs : decode_signs)(means[0], means[1], signs, values, count);
}

// What of the largest magnitudes is sent: those above `threshold`, and of those equal to it the first `num_equal`.
struct Largest {
  std::uint32_t threshold = 0;
  std::size_t num_equal = 0;
};

// Digit by digit, from the highest.
Largest largest(const float* values, std::size_t count, std::size_t num_wanted) {
  constexpr std::uint32_t kDigits[][2] = {{20, 11}, {10, 10}, {0, 10}};  // shift, bits
  Largest found{0, num_wanted};
  for (const auto& [shift, bits] : kDigits) {
    std::array<std::uint32_t, 2048> counts{};
    const std::uint32_t mask = (1u << bits) - 1;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t key = magnitude(values[i]) >> shift;
      counts[key & mask] += key >> bits == found.threshold;
    }
    std::uint32_t digit = mask;
    for (; counts[digit] < found.num_equal; --digit) found.num_equal -= counts[digit];
    found.threshold = found.threshold << bits | digit;
  }
  return found;
}

void encode_top_k(const float* source, float* residual, std::byte* message, std::size_t count) {
  take_up(source, residual, count);
  const std::size_t k = num_sent(count);
  auto* index = reinterpret_cast<std::uint32_t*>(message);
  auto* value = reinterpret_cast<float*>(message) + k;
  Largest wanted = largest(residual, count, k);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t key = magnitude(residual[i]);
    if (key < wanted.threshold && key < kInfinity) continue;
    const bool is_last = key == wanted.threshold && wanted.num_equal > 0;
    const bool is_sent = key > wanted.threshold || is_last;
    if (is_last) --wanted.num_equal;
    if (is_sent) {
      *index++ = static_cast<std::uint32_t>(i);
      *value++ = residual[i];
    }
    if (is_sent || key >= kInfinity) residual[i] = 0.0f;
  }
}

void add_top_k(const std::byte* message, float* values, std::size_t count) {
  const std::size_t k = num_sent(count);
  const auto* indices = reinterpret_cast<const std::uint32_t*>(message);
  const auto* sent = reinterpret_cast<const float*>(message) + k;
  for (std::size_t j = 0; j < k; ++j) {
    if (indices[j] >= count)
      throw std::out_of_range("a message of " + std::to_string(count) + " elements names element " +
                              std::to_string(indices[j]));
    values[indices[j]] = values[indices[j]] + sent[j];
  }
}

std::size_t aligned(std::size_t num_bytes) { return (num_bytes + 3) / 4 * 4; }

std::size_t payload_bytes(Kind kind, std::size_t count) {
  switch (kind) {
    case Kind::kBf16: return 2 * count;
    case Kind::kInt8: return 4 * num_blocks(count) + count;
    case Kind::kInt4: return 4 * num_blocks(count) + (count + 1) / 2;
    case Kind::kTopK: return 8 * num_sent(count);
    case Kind::kOneBit: return 8 * num_blocks(count) + (count + 7) / 8;
  }
  return 0;
}

void encode_blocks(Kind kind, const float* source, float* residual, std::byte* message, std::size_t count) {
  auto* head = reinterpret_cast<float*>(message);
  auto* body = reinterpret_cast<std::uint8_t*>(head + num_blocks(count) * (kind == Kind::kOneBit ? 2 : 1));
  for (std::size_t start = 0; start < count; start += kBlock) {
    const float* from = source + start;
    float* left = residual + start;
    const std::size_t size = std::min(kBlock, count - start);
    if (kind == Kind::kInt8) {
      *head++ = encode_levels(from, left, reinterpret_cast<std::int8_t*>(body) + start, 127.0f, size);
    } else if (kind == Kind::kInt4) {
      *head++ = encode_int4(from, left, body + start / 2, size);
    } else {
      encode_one_bit(from, left, head, body + start / 8, size);
      head += 2;
    }
  }
}

void decode_block(Kind kind, const std::byte* message, std::size_t count, std::size_t start, float* values,
                  std::size_t size, bool adds) {
  const auto* head = reinterpret_cast<const float*>(message);
  const std::size_t blocks = num_blocks(count), block = start / kBlock;
  if (kind == Kind::kBf16) {
    (adds ? add_bf16 : decode_bf16)(reinterpret_cast<const std::uint16_t*>(message) + start, values, size);
  } else if (kind == Kind::kInt8) {
    const auto* levels = reinterpret_cast<const std::int8_t*>(head + blocks) + start;
    (adds ? add_levels : decode_levels)(levels, values, head[block], size);
  } else if (kind == Kind::kInt4) {
    const auto* packed = reinterpret_cast<const std::uint8_t*>(head + blocks) + start / 2;
    decode_int4(packed, values, head[block], size, adds);
  } else {
    const auto* packed = reinterpret_cast<const std::uint8_t*>(head + 2 * blocks) + start / 8;
    decode_one_bit(head + 2 * block, packed, values, size, adds);
  }
}

}  // namespace

std::size_t message_bytes(Kind kind, std::size_t count) { return aligned(payload_bytes(kind, count)); }

void encode(Kind kind, const float* source, float* residual, std::byte* message, std::size_t count) {
  if (kind == Kind::kBf16)
    encode_bf16(source, residual, reinterpret_cast<std::uint16_t*>(message), count);
  else if (kind == Kind::kTopK)
    encode_top_k(source, residual, message, count);
  else
    encode_blocks(kind, source, residual, message, count);
  const std::size_t payload = payload_bytes(kind, count);
  std::fill(message + payload, message + aligned(payload), std::byte{0});
}

void decode(Kind kind, const std::byte* const* messages, std::size_t num_messages, float* values, std::size_t count,
            bool adds) {
  if (kind == Kind::kTopK) {
    if (!adds) std::fill_n(values, count, 0.0f);
    for (std::size_t k = 0; k < num_messages; ++k) add_top_k(messages[k], values, count);
    return;
  }
  // Block by block: what is added up stays in the first-level cache.
  for (std::size_t start = 0; start < count; start += kBlock)
    for (std::size_t k = 0; k < num_messages; ++k)
      decode_block(kind, messages[k], count, start, values + start, std::min(kBlock, count - start), adds || k > 0);
}

}  // namespace samovar::codec
