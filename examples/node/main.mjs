// Write text with a bundle in transformers.js.
//
//   npm install --ignore-scripts     (its CPU binary is in the package; the scripts would fetch a CUDA one)
//   node main.mjs BUNDLE "Once upon a time"
//
// With --ids, prompt and output are token ids: node main.mjs BUNDLE "5 6 7" --ids

import { parseArgs } from "node:util";
import { AutoModelForCausalLM, AutoTokenizer, env, Tensor, TextStreamer } from "@huggingface/transformers";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { ids: { type: "boolean" }, "new-tokens": { type: "string", default: "64" } },
});
const [bundle, prompt] = positionals;
if (prompt === undefined) {
  console.error('usage: node main.mjs BUNDLE PROMPT [--ids] [--new-tokens N]');
  process.exit(2);
}

env.allowRemoteModels = false; // a file that is missing is an error here, and not looked for on the hub
const model = await AutoModelForCausalLM.from_pretrained(bundle);
const options = { max_new_tokens: Number(values["new-tokens"]), do_sample: false };

if (values.ids) {
  const ids = prompt.trim().split(/\s+/).map(BigInt);
  const input_ids = new Tensor("int64", ids, [1, ids.length]);
  const attention_mask = new Tensor("int64", ids.map(() => 1n), [1, ids.length]);
  const output = await model.generate({ input_ids, attention_mask, ...options });
  console.log(output.tolist()[0].slice(ids.length).join(" "));
} else {
  const tokenizer = await AutoTokenizer.from_pretrained(bundle);
  const write = (text) => process.stdout.write(text);
  await model.generate({
    ...tokenizer(prompt),
    ...options,
    streamer: new TextStreamer(tokenizer, { skip_special_tokens: true, callback_function: write }),
  });
  write("\n");
}
