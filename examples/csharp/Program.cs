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

using var session = new InferenceSession(Path.Combine(bundle, "onnx", "model.onnx"));
using var binding = session.CreateIoBinding();
using var run = new RunOptions();
var cpu = OrtMemoryInfo.DefaultInstance;

// One buffer is past and present of a layer: each step writes its keys and values into it, and nothing is copied.
binding.BindOutputToDevice("logits", cpu);
foreach (var (past, tensor) in session.InputMetadata)
{
    if (!past.StartsWith("past_key_values.")) continue;
    int[] shape = tensor.Dimensions; // batch, heads, tokens, head_dim: the second and the last are numbers
    long[] sizes = { 1, shape[1], capacity, shape[3] };
    using var cache = OrtValue.CreateAllocatedTensorValue(OrtAllocator.DefaultInstance, tensor.ElementDataType, sizes);
    binding.BindInput(past, cache);
    binding.BindOutput("present" + past.Substring("past_key_values".Length), cache);
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
