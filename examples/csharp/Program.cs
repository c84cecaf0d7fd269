// Write token ids with a bundle and Microsoft.ML.OnnxRuntime.
//
//   dotnet run -- BUNDLE "5 6 7" 64        the prompt, and how many new ids at most
//
// For bundles whose cache may be a buffer: op set `ort`, or any other exported with `--cache static`.
// Microsoft.ML.OnnxRuntimeGenAI loads the same bundle with its tokenizer.

using System.Text.Json;
using Microsoft.ML.OnnxRuntime;

if (args.Length != 3)
{
    Console.Error.WriteLine("usage: dotnet run -- BUNDLE \"5 6 7\" NEW_TOKENS");
    return 2;
}
string bundle = args[0];
long[] step = args[1].Split(' ', StringSplitOptions.RemoveEmptyEntries).Select(long.Parse).ToArray();
int capacity = step.Length + int.Parse(args[2]);

using var manifest = JsonDocument.Parse(File.ReadAllText(Path.Combine(bundle, "edgeformer.json")));
var ends = manifest.RootElement.GetProperty("tokens").GetProperty("eos").EnumerateArray().Select(id => id.GetInt64());
var endIds = ends.ToHashSet();

using var options = new SessionOptions();
if (Environment.GetEnvironmentVariable("EDGEFORMER_KERNELS_LIBRARY") is string library)
    options.RegisterCustomOpLibrary(library); // edgeformer's own kernels
using var session = new InferenceSession(Path.Combine(bundle, "onnx", "model.onnx"), options);
using var binding = session.CreateIoBinding();
using var run = new RunOptions();
var cpu = OrtMemoryInfo.DefaultInstance;

// One buffer is past and present of a layer: each step writes its keys and values into it, and nothing is copied. So is
// a state of fixed size, as a convolution keeps it, which starts with zeros.
binding.BindOutputToDevice("logits", cpu);
foreach (var (past, tensor) in session.InputMetadata)
{
    if (!past.StartsWith("past_")) continue;
    // All sizes are numbers but the batch and, of keys and values, the tokens (-1).
    long[] sizes = tensor.Dimensions.Select(size => size < 0 ? (long)capacity : size).ToArray();
    sizes[0] = 1;
    using var cache = OrtValue.CreateAllocatedTensorValue(OrtAllocator.DefaultInstance, tensor.ElementDataType, sizes);
    cache.GetTensorMutableRawData().Clear();
    string state = past.StartsWith("past_key_values") ? "past_key_values" : "past";
    binding.BindInput(past, cache);
    binding.BindOutput("present" + past.Substring(state.Length), cache); // present.0.key, present_conv.1 …
}

for (int length = step.Length; length < capacity; length++)
{
    long[] mask = Enumerable.Repeat(1L, length).ToArray(); // of all tokens, old and new
    using var ids = OrtValue.CreateTensorValueFromMemory(step, new long[] { 1, step.Length });
    using var ones = OrtValue.CreateTensorValueFromMemory(mask, new long[] { 1, length });
    binding.BindInput("input_ids", ids);
    binding.BindInput("attention_mask", ones);
    binding.BindOutputToDevice("logits", cpu); // anew, since it changes its shape
    using var outputs = session.RunWithBoundResults(run, binding);
    var logits = outputs[0].GetTensorDataAsSpan<float>(); // outputs are in the order in which they were first bound
    var last = logits.Slice(logits.Length - (int)outputs[0].GetTensorTypeAndShape().Shape[^1]);
    long token = 0;
    for (int id = 1; id < last.Length; id++)
        if (last[id] > last[(int)token]) token = id;
    if (endIds.Contains(token)) break;
    Console.Write($"{token} ");
    step = new[] { token };
}
Console.WriteLine();
return 0;
