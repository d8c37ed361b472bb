#include "stress_codecs.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "codec_kernels.hpp"

namespace {

using namespace samovar::codec;
using Floats = std::vector<float>;
using Message = std::vector<std::byte>;
using Random = std::mt19937_64;

constexpr std::size_t kSenders = 3;
constexpr std::size_t kMostElements = 3 * kBlock + 100;
constexpr int kMessages = 3;  // one after the other, with what the one before left out
constexpr Kind kKinds[] = {Kind::kBf16, Kind::kInt8, Kind::kInt4, Kind::kTopK, Kind::kOneBit};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// From numbers below the smallest normal one to large ones, with zeros and many that are equal.
Floats values_of(Random& random, std::size_t count) {
  Floats result(count);
  const int largest = static_cast<int>(random() % 120) - 60;
  for (float& value : result) {
    const int exponent = random() % 8 == 0 ? -140 : largest - static_cast<int>(random() % 12);
    value = std::ldexp(static_cast<float>(random() % 256) - 128.0f, exponent);
  }
  return result;
}

// What it becomes again and what is kept are together what it was.
bool is_whole(const Floats& given, const Floats& kept, const Floats& sent) {
  for (std::size_t i = 0; i < given.size(); ++i)
    if (kept[i] != given[i] - sent[i]) return false;
  return true;
}

// As many as it says, and none that is kept is larger than one that is sent.
bool are_largest(const Floats& kept, const Floats& sent) {
  std::size_t num_sent = 0;
  float least = kInfinity, largest = 0.0f;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    largest = std::max(largest, std::abs(kept[i]));
    if (sent[i] == 0.0f) continue;
    ++num_sent;
    least = std::min(least, std::abs(sent[i]));
  }
  return num_sent <= (sent.size() + kElementsPerSent - 1) / kElementsPerSent && largest <= least;
}

bool sends(Kind kind, std::uint64_t seed, std::size_t count, Message& message) {
  Random random(seed);
  Floats residual(count), sent(count);
  for (int number = 0; number < kMessages; ++number) {
    const Floats source = values_of(random, count);
    Floats given(count);
    for (std::size_t i = 0; i < count; ++i) given[i] = source[i] + residual[i];
    encode(kind, source.data(), residual.data(), message.data(), count);
    const std::byte* const messages[] = {message.data()};
    decode(kind, messages, 1, sent.data(), count, false);
    if (!is_whole(given, residual, sent) || (kind == Kind::kTopK && !are_largest(residual, sent))) return false;
  }
  return true;
}

// The sum of several messages, into an array of zeros and over one of anything.
bool adds_up(Kind kind, const std::vector<Message>& messages, std::size_t count) {
  std::vector<const std::byte*> all;
  Floats wanted(count), sent(count), added(count), replaced(count, kInfinity);
  for (const Message& message : messages) {
    const std::byte* const one[] = {message.data()};
    all.push_back(message.data());
    decode(kind, one, 1, sent.data(), count, false);
    for (std::size_t i = 0; i < count; ++i) wanted[i] = wanted[i] + sent[i];
  }
  decode(kind, all.data(), all.size(), added.data(), count, true);
  decode(kind, all.data(), all.size(), replaced.data(), count, false);
  return added == wanted && replaced == wanted;
}

bool exchanges(Kind kind, Random& random) {
  const std::size_t count = 1 + random() % kMostElements;
  std::vector<Message> messages(kSenders, Message(message_bytes(kind, count)));
  std::atomic<bool> is_right{true};
  std::vector<std::thread> senders;
  for (Message& message : messages)
    senders.emplace_back([&, seed = random()] {
      if (!sends(kind, seed, count, message)) is_right = false;
    });
  for (std::thread& sender : senders) sender.join();
  return is_right && adds_up(kind, messages, count);
}

// What is not finite is not hidden, and nothing of it is kept.
bool tells_of_no_number(Kind kind, Random& random) {
  const std::size_t count = 1 + random() % kMostElements, place = random() % count;
  Floats source = values_of(random, count), residual(count), sent(count);
  source[place] = random() % 2 == 0 ? kInfinity : std::numeric_limits<float>::quiet_NaN();
  Message message(message_bytes(kind, count));
  encode(kind, source.data(), residual.data(), message.data(), count);
  const std::byte* const messages[] = {message.data()};
  decode(kind, messages, 1, sent.data(), count, false);
  const bool kept = std::all_of(residual.begin(), residual.end(), [](float value) { return std::isfinite(value); });
  return kept && !std::isfinite(sent[place]);
}

// A message from a stranger names an element that is not there.
bool refuses_an_element(Random& random) {
  const std::size_t count = 1 + random() % kMostElements;
  Message message(message_bytes(Kind::kTopK, count));
  const auto index = static_cast<std::uint32_t>(count + random() % 1000);
  std::memcpy(message.data(), &index, sizeof index);
  const std::byte* const messages[] = {message.data()};
  Floats values(count);
  try {
    decode(Kind::kTopK, messages, 1, values.data(), count, true);
  } catch (const std::out_of_range&) {
    return true;
  }
  return false;
}

}  // namespace

const char* stress_codecs(std::uint64_t seed) {
  Random random(seed);
  for (int i = 0; i < 5; ++i) {
    for (const Kind kind : kKinds) {
      if (!exchanges(kind, random)) return "a lossy form";
      if (!tells_of_no_number(kind, random)) return "a lossy form of what is not finite";
    }
    if (!refuses_an_element(random)) return "an element that is not there";
  }
  return nullptr;
}
