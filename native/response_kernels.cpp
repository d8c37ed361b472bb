#include "response_kernels.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "parallel.hpp"
#include "vectorized.hpp"

namespace samovar::layers {
namespace {

// Numbers of a block: its scratch arrays stay in the second-level cache.
constexpr std::size_t kBlock = 8192;

// Of a block's runs, where there is that much: a cache line.
constexpr std::size_t kLeastLength = 16;

SAMOVAR_INLINE float rectified(float value, bool rectifies) { return rectifies && value < 0.0f ? 0.0f : value; }

template <Beta kBeta>
SAMOVAR_INLINE float power(float s) {
  const float root = std::sqrt(s);
  if (kBeta == Beta::kHalf) return root;
  return kBeta == Beta::kOne ? s : root * std::sqrt(root);
}

// sums[i] = (values[i] + values[i + step]) + ... of `size` values.
SAMOVAR_INLINE void window_sums(float* __restrict sums, const float* __restrict values, std::size_t count,
                                std::size_t step, std::size_t size) {
  if (size == 5) {
    for (std::size_t i = 0; i < count; ++i)
      sums[i] = values[i] + values[i + step] + values[i + 2 * step] + values[i + 3 * step] + values[i + 4 * step];
    return;
  }
  if (size == 3) {
    for (std::size_t i = 0; i < count; ++i) sums[i] = values[i] + values[i + step] + values[i + 2 * step];
    return;
  }
  for (std::size_t i = 0; i < count; ++i) sums[i] = values[i];
  for (std::size_t k = 1; k < size; ++k)
    for (std::size_t i = 0; i < count; ++i) sums[i] += values[i + k * step];
}

SAMOVAR_INLINE void squares(float* __restrict out, const float* __restrict x, std::size_t count, bool rectifies) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = rectified(x[i], rectifies);
    out[i] = value * value;
  }
}

template <Beta kBeta>
SAMOVAR_INLINE void respond(float* __restrict y, const float* __restrict x, const float* __restrict sums,
                            std::size_t count, const Response& response) {
  const float factor = response.factor, k = response.k;
  const bool rectifies = response.rectifies;
  for (std::size_t i = 0; i < count; ++i)
    y[i] = rectified(x[i], rectifies) * (1.0f / power<kBeta>(k + factor * sums[i]));
}

// powers[i] = s^-beta, shares[i] = dy * x * s^(-beta - 1)
template <Beta kBeta>
SAMOVAR_INLINE void share(float* __restrict powers, float* __restrict shares, const float* __restrict x,
                          const float* __restrict dy, const float* __restrict sums, std::size_t count,
                          const Response& response) {
  const float factor = response.factor, k = response.k;
  const bool rectifies = response.rectifies;
  for (std::size_t i = 0; i < count; ++i) {
    const float s = k + factor * sums[i];
    const float inverse = 1.0f / power<kBeta>(s);
    powers[i] = inverse;
    shares[i] = dy[i] * (rectified(x[i], rectifies) * inverse) / s;
  }
}

SAMOVAR_INLINE void collect(float* __restrict dx, const float* __restrict x, const float* __restrict dy,
                            const float* __restrict powers, const float* __restrict sums, std::size_t count,
                            const Response& response) {
  const float slope = response.slope;
  if (response.rectifies) {
    for (std::size_t i = 0; i < count; ++i) {
      const float value = dy[i] * powers[i] - slope * x[i] * sums[i];
      dx[i] = x[i] <= 0.0f ? 0.0f : value;
    }
    return;
  }
  for (std::size_t i = 0; i < count; ++i) dx[i] = dy[i] * powers[i] - slope * x[i] * sums[i];
}

// A block in memory, `rows` runs of `length` numbers `stride` apart, and in scratch, where the runs follow each other
// and neighbours are `step` apart.
struct Block {
  std::size_t offset;
  std::size_t rows;
  std::size_t length;
  std::size_t stride;
  std::size_t step;
};

// (outer, channels, inner) cut into blocks with all channels.
struct Cut {
  std::size_t channels;
  std::size_t inner;
  std::size_t length;     // of the inner axis, in all but the last block of an outer index
  std::size_t per_outer;  // blocks

  Cut(std::size_t channels, std::size_t inner)
      : channels(channels),
        inner(inner),
        length(std::min(inner, std::max<std::size_t>(kLeastLength, kBlock / channels / kLeastLength * kLeastLength))),
        per_outer((inner + length - 1) / length) {}

  SAMOVAR_INLINE Block block(std::size_t index) const {
    const std::size_t start = index / per_outer * channels * inner, first = index % per_outer * length;
    if (inner == 1) return {start, 1, channels, channels, 1};
    const std::size_t width = inner - first < length ? inner - first : length;
    return {start + first, channels, width, inner, width};
  }
};

SAMOVAR_INLINE void padded_squares(float* __restrict padded, const float* __restrict x, const Block& block,
                                   std::size_t margin, bool rectifies) {
  const std::size_t count = block.rows * block.length;
  for (std::size_t i = 0; i < margin; ++i) padded[i] = padded[margin + count + i] = 0.0f;
  for (std::size_t row = 0; row < block.rows; ++row)
    squares(padded + margin + row * block.length, x + block.offset + row * block.stride, block.length, rectifies);
}

template <Beta kBeta>
SAMOVAR_INLINE void across(const float* __restrict x, float* __restrict y, const Block& block, float* padded,
                           float* sums, const Response& response) {
  padded_squares(padded, x, block, response.size / 2 * block.step, response.rectifies);
  window_sums(sums, padded, block.rows * block.length, block.step, response.size);
  for (std::size_t row = 0; row < block.rows; ++row) {
    const std::size_t place = block.offset + row * block.stride;
    respond<kBeta>(y + place, x + place, sums + row * block.length, block.length, response);
  }
}

template <Beta kBeta>
SAMOVAR_INLINE void across_backward(const float* __restrict x, const float* __restrict dy, float* __restrict dx,
                                    const Block& block, float* padded, float* sums, float* powers,
                                    const Response& response) {
  const std::size_t margin = response.size / 2 * block.step, count = block.rows * block.length;
  padded_squares(padded, x, block, margin, response.rectifies);
  window_sums(sums, padded, count, block.step, response.size);
  for (std::size_t row = 0; row < block.rows; ++row) {
    const std::size_t place = block.offset + row * block.stride, start = row * block.length;
    share<kBeta>(powers + start, padded + margin + start, x + place, dy + place, sums + start, block.length, response);
  }
  window_sums(sums, padded, count, block.step, response.size);
  for (std::size_t row = 0; row < block.rows; ++row) {
    const std::size_t place = block.offset + row * block.stride, start = row * block.length;
    collect(dx + place, x + place, dy + place, powers + start, sums + start, block.length, response);
  }
}

template <Beta kBeta>
SAMOVAR_INLINE void across_range(const float* x, float* y, const Cut& cut, std::size_t begin, std::size_t end,
                                 float* scratch, std::size_t room, const Response& response) {
  for (std::size_t i = begin; i < end; ++i) across<kBeta>(x, y, cut.block(i), scratch, scratch + room, response);
}

template <Beta kBeta>
SAMOVAR_INLINE void across_range_backward(const float* x, const float* dy, float* dx, const Cut& cut,
                                          std::size_t begin, std::size_t end, float* scratch, std::size_t room,
                                          const Response& response) {
  for (std::size_t i = begin; i < end; ++i)
    across_backward<kBeta>(x, dy, dx, cut.block(i), scratch, scratch + room, scratch + 2 * room, response);
}

SAMOVAR_VECTORIZED void run_across(const float* x, float* y, const Cut cut, std::size_t begin, std::size_t end,
                                   float* scratch, std::size_t room, const Response response) {
  switch (response.beta) {
    case Beta::kThreeQuarters:
      return across_range<Beta::kThreeQuarters>(x, y, cut, begin, end, scratch, room, response);
    case Beta::kHalf: return across_range<Beta::kHalf>(x, y, cut, begin, end, scratch, room, response);
    case Beta::kOne: return across_range<Beta::kOne>(x, y, cut, begin, end, scratch, room, response);
  }
}

SAMOVAR_VECTORIZED void run_across_backward(const float* x, const float* dy, float* dx, const Cut cut,
                                            std::size_t begin, std::size_t end, float* scratch, std::size_t room,
                                            const Response response) {
  switch (response.beta) {
    case Beta::kThreeQuarters:
      return across_range_backward<Beta::kThreeQuarters>(x, dy, dx, cut, begin, end, scratch, room, response);
    case Beta::kHalf:
      return across_range_backward<Beta::kHalf>(x, dy, dx, cut, begin, end, scratch, room, response);
    case Beta::kOne: return across_range_backward<Beta::kOne>(x, dy, dx, cut, begin, end, scratch, room, response);
  }
}

// Planes of `height` rows of width * inner numbers; `ring` rows are kept at once.
struct Planes {
  std::size_t height;
  std::size_t width;
  std::size_t inner;
  std::size_t size;

  std::size_t row() const { return width * inner; }
  std::size_t half() const { return size / 2; }
  std::size_t ring() const { return std::min(size, height) * row(); }
  std::size_t padded() const { return (width + size - 1) * inner; }
};

// The sum of the rows of a ring that surround row y.
SAMOVAR_INLINE void column_sums(float* __restrict sums, const float* __restrict ring, const Planes& planes,
                                std::size_t y) {
  const std::size_t half = planes.size / 2, row = planes.width * planes.inner;
  const std::size_t first = y < half ? 0 : y - half, last = y + half < planes.height ? y + half : planes.height - 1;
  for (std::size_t i = 0; i < row; ++i) sums[i] = ring[first % planes.size * row + i];
  for (std::size_t q = first + 1; q <= last; ++q)
    for (std::size_t i = 0; i < row; ++i) sums[i] += ring[q % planes.size * row + i];
}

template <Beta kBeta>
SAMOVAR_INLINE void within(const float* x, float* y, const Planes& planes, float* scratch, const Response& response) {
  const std::size_t half = planes.size / 2, row = planes.width * planes.inner;
  float *padded = scratch, *sums = padded + planes.padded(), *ring = sums + row;
  for (std::size_t q = 0; q < planes.height + half; ++q) {
    if (q < planes.height) {
      padded_squares(padded, x + q * row, {0, 1, row, row, planes.inner}, half * planes.inner, response.rectifies);
      window_sums(ring + q % planes.size * row, padded, row, planes.inner, planes.size);
    }
    if (q < half) continue;
    column_sums(sums, ring, planes, q - half);
    respond<kBeta>(y + (q - half) * row, x + (q - half) * row, sums, row, response);
  }
}

// Three stages follow each other, half a window apart: sums of squares along a row, then powers and sums of shares
// along a row, then the gradient.
template <Beta kBeta>
SAMOVAR_INLINE void within_backward(const float* x, const float* dy, float* dx, const Planes& planes, float* scratch,
                                    const Response& response) {
  const std::size_t half = planes.size / 2, row = planes.width * planes.inner, margin = half * planes.inner;
  float *padded = scratch, *sums = padded + planes.padded(), *squared = sums + row;
  float *powers = squared + planes.ring(), *shares = powers + planes.ring();
  for (std::size_t q = 0; q < planes.height + 2 * half; ++q) {
    if (q < planes.height) {
      padded_squares(padded, x + q * row, {0, 1, row, row, planes.inner}, margin, response.rectifies);
      window_sums(squared + q % planes.size * row, padded, row, planes.inner, planes.size);
    }
    if (q >= half && q - half < planes.height) {
      const std::size_t at = q - half, slot = at % planes.size * row;
      column_sums(sums, squared, planes, at);
      share<kBeta>(powers + slot, padded + margin, x + at * row, dy + at * row, sums, row, response);
      window_sums(shares + slot, padded, row, planes.inner, planes.size);
    }
    if (q < 2 * half) continue;
    const std::size_t at = q - 2 * half;
    column_sums(sums, shares, planes, at);
    collect(dx + at * row, x + at * row, dy + at * row, powers + at % planes.size * row, sums, row, response);
  }
}

SAMOVAR_VECTORIZED void run_within(const float* x, float* y, const Planes planes, float* scratch,
                                   const Response response) {
  switch (response.beta) {
    case Beta::kThreeQuarters: return within<Beta::kThreeQuarters>(x, y, planes, scratch, response);
    case Beta::kHalf: return within<Beta::kHalf>(x, y, planes, scratch, response);
    case Beta::kOne: return within<Beta::kOne>(x, y, planes, scratch, response);
  }
}

SAMOVAR_VECTORIZED void run_within_backward(const float* x, const float* dy, float* dx, const Planes planes,
                                            float* scratch, const Response response) {
  switch (response.beta) {
    case Beta::kThreeQuarters: return within_backward<Beta::kThreeQuarters>(x, dy, dx, planes, scratch, response);
    case Beta::kHalf: return within_backward<Beta::kHalf>(x, dy, dx, planes, scratch, response);
    case Beta::kOne: return within_backward<Beta::kOne>(x, dy, dx, planes, scratch, response);
  }
}

// The same windows, no wider than needed to reach every neighbour there is.
Response fitted(Response response, std::size_t extent) {
  response.size = std::min(response.size, 2 * extent - 1);
  return response;
}

}  // namespace

void respond_across(const float* x, float* y, std::size_t outer, std::size_t channels, std::size_t inner,
                    const Response& given, int threads) {
  const Response response = fitted(given, channels);
  const Cut cut(channels, inner);
  const std::size_t room = cut.length * (channels + response.size - 1);
  parallel(outer * cut.per_outer, outer * channels * inner, threads, [&](std::size_t begin, std::size_t end) {
    std::vector<float> scratch(2 * room);
    run_across(x, y, cut, begin, end, scratch.data(), room, response);
  });
}

void respond_across_backward(const float* x, const float* dy, float* dx, std::size_t outer, std::size_t channels,
                             std::size_t inner, const Response& given, int threads) {
  const Response response = fitted(given, channels);
  const Cut cut(channels, inner);
  const std::size_t room = cut.length * (channels + response.size - 1);
  parallel(outer * cut.per_outer, outer * channels * inner, threads, [&](std::size_t begin, std::size_t end) {
    std::vector<float> scratch(3 * room);
    run_across_backward(x, dy, dx, cut, begin, end, scratch.data(), room, response);
  });
}

void respond_within(const float* x, float* y, std::size_t outer, std::size_t height, std::size_t width,
                    std::size_t inner, const Response& given, int threads) {
  const Response response = fitted(given, std::max(height, width));
  const Planes planes{height, width, inner, response.size};
  const std::size_t plane = height * planes.row();
  parallel(outer, outer * plane, threads, [&](std::size_t begin, std::size_t end) {
    std::vector<float> scratch(planes.padded() + planes.row() + planes.ring());
    for (std::size_t i = begin; i < end; ++i)
      run_within(x + i * plane, y + i * plane, planes, scratch.data(), response);
  });
}

void respond_within_backward(const float* x, const float* dy, float* dx, std::size_t outer, std::size_t height,
                             std::size_t width, std::size_t inner, const Response& given, int threads) {
  const Response response = fitted(given, std::max(height, width));
  const Planes planes{height, width, inner, response.size};
  const std::size_t plane = height * planes.row();
  parallel(outer, outer * plane, threads, [&](std::size_t begin, std::size_t end) {
    std::vector<float> scratch(planes.padded() + planes.row() + 3 * planes.ring());
    for (std::size_t i = begin; i < end; ++i)
      run_within_backward(x + i * plane, dy + i * plane, dx + i * plane, planes, scratch.data(), response);
  });
}

}  // namespace samovar::layers
