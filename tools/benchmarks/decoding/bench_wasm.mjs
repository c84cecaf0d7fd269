// Measure decode steps of decoder bundles in onnxruntime-web's WebAssembly, in Node.
//
//   npm install onnxruntime-web          (in a folder of yours, named by --modules)
//   node tools/benchmarks/decoding/bench_wasm.mjs --modules FOLDER BUNDLE [BUNDLE…]
//
// Each onnx/model.onnx runs steps of one row and one token behind --past tokens, whose keys and values are copied into
// WebAssembly every step. The sessions are open together and run in turns, --steps of each a round. Prints ms of a
// step and tokens per second: the median over the rounds, and the range.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";

const { values, positionals: bundles } = parseArgs({
  allowPositionals: true,
  options: {
    modules: { type: "string", default: "." },
    past: { type: "string", default: "128" },
    steps: { type: "string", default: "8" },
    rounds: { type: "string", default: "5" },
    threads: { type: "string", default: "1" },
  },
});
if (!bundles.length) {
  console.error("usage: node bench_wasm.mjs [--modules FOLDER] [--past N] [--steps N] [--rounds N] BUNDLE…");
  process.exit(2);
}
const [past, steps, rounds] = [values.past, values.steps, values.rounds].map(Number);
const ort = createRequire(join(resolve(values.modules), "package.json"))("onnxruntime-web");
ort.env.wasm.numThreads = Number(values.threads);
ort.env.logLevel = "error";

async function open(bundle) {
  const file = join(bundle, "onnx", "model.onnx"), manifest = JSON.parse(readFileSync(join(bundle, "edgeformer.json")));
  const data = Object.keys(manifest.files).filter((name) => /^onnx\/model\.onnx_data/.test(name));
  const externalData = data.map((name) => ({ path: name.slice("onnx/".length), data: readFileSync(join(bundle, name)) }));
  const session = await ort.InferenceSession.create(readFileSync(file), { executionProviders: ["wasm"], externalData });
  const caches = {};
  for (const each of session.inputMetadata.filter(({ name }) => name.startsWith("past_"))) {
    const shape = [1, each.shape[1], past, each.shape[3]], size = shape.reduce((a, b) => a * b);
    caches[each.name] = new ort.Tensor(each.type, new Float32Array(size).map((_, index) => Math.sin(index)), shape);
  }
  const attention_mask = new ort.Tensor("int64", new BigInt64Array(past + 1).fill(1n), [1, past + 1]);
  return async () => {
    const start = performance.now();
    for (let step = 0; step < steps; step++) {
      const input_ids = new ort.Tensor("int64", BigInt64Array.of(BigInt(100 + step)), [1, 1]);
      const { logits } = await session.run({ input_ids, attention_mask, ...caches }, ["logits"]);
      if (!Number.isFinite(logits.data[0])) throw new Error(`${bundle}: the logits are no numbers`);
    }
    return (performance.now() - start) / steps;
  };
}

const runs = new Map();
for (const bundle of bundles) {
  try {
    const run = await open(bundle);
    await run();
    runs.set(bundle, { run, ms: [] });
  } catch (error) {
    console.log(`${bundle}: ${error.message ?? error}`);
  }
}
for (let round = 0; round < rounds; round++) for (const { run, ms } of runs.values()) ms.push(await run());
const versions = `onnxruntime-web ${ort.env.versions.web}, Node ${process.versions.node}`;
console.log(`${versions}, ${values.threads} thread(s), steps behind ${past} tokens, ${rounds} rounds`);
for (const [bundle, { ms }] of runs) {
  ms.sort((a, b) => a - b);
  const middle = ms[ms.length >> 1], [low, high] = [1000 / ms.at(-1), 1000 / ms[0]].map((each) => each.toFixed(1));
  console.log(`${bundle}: ${middle.toFixed(1)} ms a step, ${(1000 / middle).toFixed(1)} tokens/s (${low}–${high})`);
}
process.exit(0);
