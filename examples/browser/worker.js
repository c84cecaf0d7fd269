// The model lives in a worker, so that the page stays alive and shows each word while the next one is computed.
import {
  AutoModelForCausalLM, AutoTokenizer, env, TextStreamer,
} from "./node_modules/@huggingface/transformers/dist/transformers.min.js";

env.allowLocalModels = true;
env.allowRemoteModels = false; // a file that is missing is an error here, and not looked for on the hub
env.useBrowserCache = false; // a bundle exported anew has the same names: the server knows what is new, the cache does not
env.backends.onnx.wasm.wasmPaths = new URL("node_modules/onnxruntime-web/dist/", import.meta.url).href;

const BUNDLE = "./model";
let model, tokenizer;

async function load(device) {
  [model, tokenizer] = await Promise.all([
    AutoModelForCausalLM.from_pretrained(BUNDLE, { device }),
    AutoTokenizer.from_pretrained(BUNDLE),
  ]);
  postMessage({ status: `Ready, on ${device}.`, ready: true });
}

async function write(prompt) {
  const inputs = tokenizer(prompt);
  const start = performance.now();
  const output = await model.generate({
    ...inputs,
    max_new_tokens: 64,
    do_sample: false,
    streamer: new TextStreamer(tokenizer, {
      skip_prompt: true,
      skip_special_tokens: true,
      callback_function: (text) => postMessage({ text }),
    }),
  });
  const ids = output.tolist()[0].slice(inputs.input_ids.dims[1]).map(Number);
  const speed = (1000 * ids.length) / (performance.now() - start);
  postMessage({ ids, status: `${ids.length} tokens, ${speed.toFixed(0)} a second.`, ready: true });
}

addEventListener("message", ({ data }) => {
  (data.device ? load(data.device) : write(data.prompt)).catch((error) => postMessage({ error: error.message }));
});
