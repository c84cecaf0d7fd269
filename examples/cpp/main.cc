// Write token ids with a bundle and the C++ API of onnxruntime.
//
//   g++ -std=c++17 -O2 main.cc -I"$ORT/include" -L"$ORT/lib" -lonnxruntime -o generate     (ORT: a release, unpacked)
//   ./generate BUNDLE "5 6 7" 64 2        the prompt, how many new ids at most, and the ids that end a text
//
// For bundles whose cache may be a buffer: op set `ort`, or any other exported with `--cache static`. Libraries such as
// tokenizers-cpp make ids of texts and back with the bundle's tokenizer.json.

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

using Ids = std::vector<int64_t>;

void generate(const std::filesystem::path& bundle, Ids step, int64_t new_tokens, const std::set<int64_t>& ends) {
  Ort::Env env;
  Ort::SessionOptions options;
  if (const char* library = std::getenv("EDGEFORMER_KERNELS_LIBRARY")) {
    options.RegisterCustomOpsLibrary(std::filesystem::path(library).c_str());  // edgeformer's own kernels
  }
  Ort::Session session(env, (bundle / "onnx" / "model.onnx").c_str(), options);
  Ort::AllocatorWithDefaultOptions allocator;
  const auto cpu = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  const auto bind = [&](Ort::IoBinding& binding, const char* name, Ids& ids) {
    const int64_t shape[]{1, static_cast<int64_t>(ids.size())};
    binding.BindInput(name, Ort::Value::CreateTensor(cpu, ids.data(), ids.size(), shape, 2));
  };

  // One buffer is past and present of a layer: each step writes its keys and values into it, and nothing is copied. So
  // is a state of fixed size, as a convolution keeps it, which starts with zeros.
  Ort::IoBinding binding(session);
  binding.BindOutput("logits", cpu);
  const int64_t capacity = step.size() + new_tokens;
  for (size_t i = 0; i < session.GetInputCount(); ++i) {
    const std::string past = session.GetInputNameAllocated(i, allocator).get();
    if (past.rfind("past_", 0) != 0) continue;
    const auto type = session.GetInputTypeInfo(i);
    const auto tensor = type.GetTensorTypeAndShapeInfo();
    Ids sizes = tensor.GetShape();  // all are numbers but the batch and, of keys and values, the tokens (-1)
    sizes[0] = 1;
    std::replace(sizes.begin(), sizes.end(), int64_t{-1}, capacity);
    auto cache = Ort::Value::CreateTensor(allocator, sizes.data(), sizes.size(), tensor.GetElementType());
    std::memset(cache.GetTensorMutableRawData(), 0, cache.GetTensorSizeInBytes());
    const std::string keys = "past_key_values", state = past.rfind(keys, 0) == 0 ? keys : "past";
    binding.BindInput(past.c_str(), cache);
    binding.BindOutput(("present" + past.substr(state.size())).c_str(), cache);  // present.0.key, present_conv.1 …
  }

  Ids mask(step.size(), 1);  // of all tokens, old and new
  for (; static_cast<int64_t>(mask.size()) < capacity; mask.push_back(1)) {
    bind(binding, "input_ids", step);
    bind(binding, "attention_mask", mask);
    binding.BindOutput("logits", cpu);  // anew, since it changes its shape
    session.Run(Ort::RunOptions(), binding);
    const auto outputs = binding.GetOutputValues();  // in the order in which they were first bound
    const auto info = outputs[0].GetTensorTypeAndShapeInfo();
    const float* end = outputs[0].GetTensorData<float>() + info.GetElementCount();
    const float* last = end - info.GetShape().back();  // the logits of the last token
    const int64_t token = std::max_element(last, end) - last;
    if (ends.count(token)) break;
    std::cout << token << ' ' << std::flush;
    step = {token};
  }
  std::cout << '\n';
}

int main(int argc, char** argv) try {
  if (argc < 4) throw std::invalid_argument("usage: generate BUNDLE \"5 6 7\" NEW_TOKENS [END_ID ...]");
  std::istringstream prompt(argv[2]);
  std::set<int64_t> ends;
  for (int i = 4; i < argc; ++i) ends.insert(std::stoll(argv[i]));
  generate(argv[1], {std::istream_iterator<int64_t>(prompt), {}}, std::stoll(argv[3]), ends);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
