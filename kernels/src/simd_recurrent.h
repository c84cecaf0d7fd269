// A causal convolution and linear attention, written once over a SIMD level V (see simd_kernels.h).
#pragma once

#include <cmath>
#include <cstring>

#include "recurrent.h"
#include "simd_gate.h"

namespace edgeformer {

template <class V>
void convolve(const Convolution& all, float* y) {
  for (int i = 0; i < all.channels; i += V::kLanes) {
    const int left = all.channels - i;
    typename V::Floats sum = all.bias == nullptr ? V::splat(0.0f) : load_or_zeros<V>(all.bias + i, left);
    for (int tap = 0; tap < all.count; ++tap) {
      const float* of_tap = all.taps + static_cast<std::size_t>(tap) * all.channels;
      sum = V::multiply_add(load_or_zeros<V>(of_tap + i, left), load_or_zeros<V>(all.inputs[tap] + i, left), sum);
    }
    store_some<V>(y + i, all.silu ? silu<V>(sum) : sum, left);
  }
}

// The tokens of a head go by one after the other. While a token changes the state, what the next one knows of it is summed, so
// that the state is read and written once for each. It is stored without its decays, of which `decayed_` is the product, until
// that is small: then a token multiplies no number of the state.
template <class V, bool kCorrected>
class HeadOfState {
  static constexpr int kVectors = kStateColumns / V::kLanes;
  using Floats = typename V::Floats;

 public:
  explicit HeadOfState(const StateOfHead& head) : head_(head) {}

  void run() {
    int token = next(0);
    read_past(token);
    while (token < head_.tokens) {
      const int following = next(token + 1);
      step(token, following);
      token = following;
    }
    if (decayed_ != 1) decay_all();
    for (int i = 0; i < head_.key_dim; ++i) {
      std::memcpy(head_.present + i * head_.stride, row(i), head_.columns * sizeof(float));
    }
  }

 private:
  float* row(int i) const { return head_.memory + static_cast<std::size_t>(i) * kStateColumns; }
  const float* key(int token) const { return head_.key + token * head_.to_key; }

  // The first token from this one on that is none of padding, whose outputs become 0.
  int next(int token) {
    for (; token < head_.tokens && !head_.mask[token]; ++token) {
      std::memset(head_.output + token * head_.to_value, 0, head_.columns * sizeof(float));
    }
    return token;
  }

  void read_past(int first) {
    const float* of_key = first < head_.tokens ? key(first) : nullptr;
    for (Floats& sums : known_) sums = V::splat(0.0f);
    for (int i = 0; i < head_.key_dim; ++i) {
      const float* from = head_.past + i * head_.stride;
      const Floats factor = V::splat(of_key != nullptr ? of_key[i] : 0.0f);
#pragma clang loop unroll(full)
      for (int each = 0; each < kVectors; ++each) {
        const Floats state = load_or_zeros<V>(from + each * V::kLanes, head_.columns - each * V::kLanes);
        V::store(row(i) + each * V::kLanes, state);
        if constexpr (kCorrected) known_[each] = V::multiply_add(factor, state, known_[each]);
      }
    }
  }

  void decay_all() {
    for (int i = 0; i < head_.key_dim; ++i) {
      for (int each = 0; each < kStateColumns; each += V::kLanes) {
        V::store(row(i) + each, V::multiply(V::load(row(i) + each), V::splat(decayed_)));
      }
    }
    decayed_ = 1;
  }

  void step(int token, int following) {
    const float decay = head_.decay == nullptr ? 1.0f : std::exp(head_.decay[token * head_.to_decay]);
    decayed_ *= decay;
    if (!(decayed_ >= kLeastDecayed)) decay_all();
    const float *of_query = head_.query + token * head_.to_query, *of_key = key(token);
    const float* of_next = key(following < head_.tokens ? following : token);
    const float* value = head_.value + token * head_.to_value;
    const Floats to_stored = V::splat(1 / decayed_);
    Floats change[kVectors], sums[kVectors], known[kVectors];
#pragma clang loop unroll(full)
    for (int each = 0; each < kVectors; ++each) {
      change[each] = load_or_zeros<V>(value + each * V::kLanes, head_.columns - each * V::kLanes);
      if constexpr (kCorrected) {
        const Floats before = V::multiply(V::splat(decay), known_[each]);
        change[each] = V::multiply(V::subtract(change[each], before), V::splat(head_.beta[token * head_.to_decay]));
      }
      change[each] = V::multiply(change[each], to_stored);
      sums[each] = known[each] = V::splat(0.0f);
    }
    for (int i = 0; i < head_.key_dim; ++i) {
      const Floats by_key = V::splat(of_key[i]), by_query = V::splat(of_query[i]), by_next = V::splat(of_next[i]);
#pragma clang loop unroll(full)
      for (int each = 0; each < kVectors; ++each) {
        float* const at = row(i) + each * V::kLanes;
        const Floats state = V::multiply_add(by_key, change[each], V::load(at));
        V::store(at, state);
        sums[each] = V::multiply_add(by_query, state, sums[each]);
        if constexpr (kCorrected) known[each] = V::multiply_add(by_next, state, known[each]);
      }
    }
    float* const output = head_.output + token * head_.to_value;
#pragma clang loop unroll(full)
    for (int each = 0; each < kVectors; ++each) {
      const int left = head_.columns - each * V::kLanes;
      if (left > 0) store_some<V>(output + each * V::kLanes, V::multiply(sums[each], V::splat(head_.scale * decayed_)), left);
      known_[each] = V::multiply(known[each], V::splat(decayed_));
    }
  }

  // Numbers that are divided by it stay far from the largest float, and keep their digits.
  static constexpr float kLeastDecayed = 1e-12f;

  const StateOfHead& head_;
  float decayed_ = 1;
  Floats known_[kVectors];  // the state before a token, times its key
};

template <class V>
void attend_state(const StateOfHead& head) {
  head.beta == nullptr ? HeadOfState<V, false>(head).run() : HeadOfState<V, true>(head).run();
}

}  // namespace edgeformer
