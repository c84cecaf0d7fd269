#include "split_norm.h"

#include <algorithm>

#include "each_row.h"

namespace edgeformer {

SplitRMSNorm::SplitRMSNorm(const Node& node) : epsilon_(node.number("epsilon")), level_(node.level()) {
  const std::int64_t* widths = node.constant<std::int64_t>(3, "split", 3);
  queries_ = widths[0];
  keys_ = widths[1];
  values_ = widths[2];
  if (std::min({queries_, keys_, values_}) < 0) node.refuse("split must be of numbers that are not negative");
}

void SplitRMSNorm::run(Call& call, Parallel& parallel) const {
  const std::vector<std::int64_t> shape = call.shape(0), gamma = call.shape(1);
  const std::int64_t queries = queries_, keys = keys_, values = values_, all = queries + keys + values;
  if (shape.size() != 3 || shape[2] != all) call.refuse("A must have 3 dimensions, the last of " + std::to_string(all));
  if (gamma.size() != 1 || call.shape(2) != gamma) call.refuse("query_gamma and key_gamma must be of one head each");
  const std::int64_t size = gamma[0];
  if (size < 1 || queries % size != 0 || keys % size != 0) call.refuse("queries and keys must be whole heads");
  const float *input = call.input<float>(0), *of_query = call.input<float>(1), *of_key = call.input<float>(2);
  float* query = call.output<float>(0, {shape[0], shape[1], queries});
  float* key = call.output<float>(1, {shape[0], shape[1], keys});
  float* value = call.output<float>(2, {shape[0], shape[1], values});
  run_each_row(shape[0] * shape[1], all, parallel, [&](std::size_t token) {
    const float* from = input + token * all;
    for (std::int64_t at = 0; at < queries; at += size) {
      level_.norm(from + at, of_query, static_cast<int>(size), epsilon_, query + token * queries + at);
    }
    from += queries;
    for (std::int64_t at = 0; at < keys; at += size) {
      level_.norm(from + at, of_key, static_cast<int>(size), epsilon_, key + token * keys + at);
    }
    std::copy_n(from + keys, values, value + token * values);
  });
}

}  // namespace edgeformer
