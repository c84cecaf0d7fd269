// Translate (or shorten, or answer: whatever the model was trained for) with an encoder-decoder in transformers.js.
//
//   npm install --ignore-scripts     (its CPU binary is in the package; the scripts would fetch a CUDA one)
//   node translate.mjs BUNDLE "A text to translate."
//
// With --ids, source and output are token ids: node translate.mjs BUNDLE "5 6 7 1" --ids

import { parseArgs } from "node:util";
import { AutoModelForSeq2SeqLM, AutoTokenizer, env, Tensor, TextStreamer } from "@huggingface/transformers";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { ids: { type: "boolean" }, "new-tokens": { type: "string", default: "64" } },
});
const [bundle, source] = positionals;
if (source === undefined) {
  console.error('usage: node translate.mjs BUNDLE TEXT [--ids] [--new-tokens N]');
  process.exit(2);
}

env.allowRemoteModels = false; // a file that is missing is an error here, and not looked for on the hub
const model = await AutoModelForSeq2SeqLM.from_pretrained(bundle);
const options = { max_new_tokens: Number(values["new-tokens"]), do_sample: false, num_beams: 1 };

if (values.ids) {
  const ids = source.trim().split(/\s+/).map(BigInt);
  const input_ids = new Tensor("int64", ids, [1, ids.length]);
  const attention_mask = new Tensor("int64", ids.map(() => 1n), [1, ids.length]);
  const output = await model.generate({ input_ids, attention_mask, ...options });
  console.log(output.tolist()[0].slice(1).join(" ")); // without the token that every text starts with
} else {
  const tokenizer = await AutoTokenizer.from_pretrained(bundle);
  const write = (text) => process.stdout.write(text);
  await model.generate({
    ...tokenizer(source),
    ...options,
    streamer: new TextStreamer(tokenizer, { skip_special_tokens: true, callback_function: write }),
  });
  write("\n");
}
