// The model lives in a worker, so that the page stays alive and shows each word while the next one is computed.
import {
  AutoModelForCausalLM, AutoTokenizer, env, TextStreamer,
} from "./node_modules/@huggingface/transformers/dist/transformers.min.js";
import { chooseDevice } from "./device.js";
import { openFiles } from "./files.js";

env.allowLocalModels = true;
env.allowRemoteModels = false; // a file that is missing is an error here, and not looked for on the hub
env.useBrowserCache = false; // it goes by names, which a bundle exported anew has again; files.js goes by hashes
env.backends.onnx.wasm.wasmPaths = new URL("node_modules/onnxruntime-web/dist/", import.meta.url).href;

let model, tokenizer, problem;

async function load(asked) {
  const { device, why, folder, manifest } = await chooseDevice(asked);
  postMessage({ device, why, name: manifest.name });
  env.fetch = await openFiles(folder, manifest, (files) => postMessage({ files }), (why) => (problem = why));
  [model, tokenizer] = await Promise.all([
    AutoModelForCausalLM.from_pretrained(folder, { device }),
    AutoTokenizer.from_pretrained(folder),
  ]);
  postMessage({ ready: true });
}

async function write(prompt) {
  const inputs = tokenizer(prompt);
  const start = performance.now();
  let count = 0, first;
  const counted = () => {
    first ??= performance.now();
    count += 1;
    const speed = count > 1 ? (1000 * (count - 1)) / (performance.now() - first) : undefined;
    postMessage({ count, speed, wait: first - start });
  };
  const output = await model.generate({
    ...inputs,
    max_new_tokens: 64,
    do_sample: false,
    streamer: new TextStreamer(tokenizer, {
      skip_prompt: true,
      skip_special_tokens: true,
      callback_function: (text) => postMessage({ text }),
      token_callback_function: counted,
    }),
  });
  postMessage({ ids: output.tolist()[0].slice(inputs.input_ids.dims[1]).map(Number), ready: true });
}

addEventListener("message", ({ data }) => {
  const work = data.prompt === undefined ? load(data.device) : write(data.prompt);
  work.catch((error) => postMessage({ error: problem ?? error.message ?? String(error) }));
});
