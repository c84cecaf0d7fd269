// Vectors of sentences from an encoder's bundle in transformers.js; those of like meaning point the same way.
//
//   npm install --ignore-scripts
//   node embed.mjs BUNDLE "A cat sleeps." "A kitten naps." "Stocks fell."

import { env, pipeline } from "@huggingface/transformers";

const [bundle, ...texts] = process.argv.slice(2);
if (texts.length === 0) {
  console.error("usage: node embed.mjs BUNDLE TEXT ...");
  process.exit(2);
}

env.allowRemoteModels = false; // a file that is missing is an error here, and not looked for on the hub
const embed = await pipeline("feature-extraction", bundle);
// The states of all tokens become one vector here; "cls" instead of "mean" takes the first, if the model wants that.
const vectors = await embed(texts, { pooling: "mean", normalize: true });
console.log(JSON.stringify(vectors.tolist()));
