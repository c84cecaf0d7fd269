// Answer about pictures with a bundle in transformers.js.
//
//   npm install --ignore-scripts
//   node picture.mjs BUNDLE "What is left of the circle?" shapes.png
//
// With --values, token ids and pixel values are those of a file, as transformers' processor in Python makes them, and
// ids are printed: node picture.mjs BUNDLE --values VALUES.json, of {"input_ids": {"dims": [1, 43], "data": […]}, …}

import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { AutoModelForImageTextToText, AutoProcessor, cat, env, load_image, Tensor } from "@huggingface/transformers";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { values: { type: "string" }, "new-tokens": { type: "string", default: "64" } },
});
const [bundle, prompt, ...pictures] = positionals;
if (bundle === undefined || (pictures.length === 0 && !values.values)) {
  console.error("usage: node picture.mjs BUNDLE PROMPT PICTURE… [--new-tokens N], or BUNDLE --values FILE");
  process.exit(2);
}

env.allowRemoteModels = false; // a file that is missing is an error here, and not looked for on the hub
const model = await AutoModelForImageTextToText.from_pretrained(bundle);

// Towers that read pictures of any size (Qwen) read one in a run.
const encode = model.encode_image.bind(model);
model.encode_image = async ({ pixel_values, image_grid_thw, ...others }) => {
  if (!image_grid_thw) return encode({ pixel_values, ...others });
  const found = [];
  let start = 0;
  for (const grid of image_grid_thw.tolist()) {
    const end = start + Number(grid[0] * grid[1] * grid[2]);
    const own = { pixel_values: pixel_values.slice([start, end]), image_grid_thw: new Tensor("int64", grid, [1, 3]) };
    found.push(await encode(own));
    start = end;
  }
  return cat(found, 0);
};

const options = { max_new_tokens: Number(values["new-tokens"]), do_sample: false };
const newTokens = async (inputs) =>
  (await model.generate({ ...inputs, ...options })).slice(null, [inputs.input_ids.dims[1], null]);

if (values.values) {
  const types = { input_ids: "int64", image_grid_thw: "int64", pixel_values: "float32" };
  const inputs = {};
  for (const [name, { dims, data }] of Object.entries(JSON.parse(readFileSync(values.values)))) {
    const type = types[name];
    inputs[name] = new Tensor(type, type === "int64" ? data.map(BigInt) : data, dims);
  }
  const { input_ids } = inputs;
  inputs.attention_mask = new Tensor("int64", new BigInt64Array(input_ids.size).fill(1n), input_ids.dims);
  console.log((await newTokens(inputs)).tolist()[0].join(" "));
} else {
  const processor = await AutoProcessor.from_pretrained(bundle);
  const content = [...pictures.map(() => ({ type: "image" })), { type: "text", text: prompt }];
  const chat_template = readFileSync(`${bundle}/chat_template.jinja`, "utf8"); // which it looks for elsewhere
  const text = processor.apply_chat_template([{ role: "user", content }], { chat_template, add_generation_prompt: true });
  const inputs = await processor(text, await Promise.all(pictures.map((each) => load_image(each))));
  console.log(processor.batch_decode(await newTokens(inputs), { skip_special_tokens: true })[0]);
}
