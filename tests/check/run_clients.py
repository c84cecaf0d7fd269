"""Run the clients: each generates tokens greedily from a prompt of token ids."""

import importlib.util
import json
import subprocess

import numpy as np
import onnxruntime_genai as og
import pytest
from verification.client_programs.client import EXAMPLES
from verification.client_programs.programs import with_modules

# A prompt after which no model of these tests generates an end token.
PROMPT, STEPS = [33, 12, 6, 13, 17], 6


def in_onnxruntime(bundle):
    """Return the tokens that the Python example generates."""
    spec = importlib.util.spec_from_file_location("example", EXAMPLES / "python_onnxruntime.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return list(example.generate(bundle, PROMPT, STEPS))


def in_genai(bundle):
    """Return the tokens that onnxruntime-genai generates; it also opens the tokenizer, if there is one."""
    model = og.Model(str(bundle))
    if (bundle / "tokenizer.json").is_file():
        og.Tokenizer(model)
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(PROMPT) + STEPS, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array([PROMPT], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return generator.get_sequence(0)[len(PROMPT) :].tolist()


RUN = """
import { existsSync } from "node:fs";
import {
  AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForQuestionAnswering, AutoTokenizer, env, Tensor,
} from "@huggingface/transformers";
env.allowRemoteModels = false;
const [prompt, steps, folders] = process.argv.slice(1).map(JSON.parse);
async function run(folder) {
  if (existsSync(`${folder}/tokenizer.json`)) await AutoTokenizer.from_pretrained(folder);
  const ids = prompt.map(BigInt), dims = [1, ids.length];
  const inputs = {
    input_ids: new Tensor("int64", ids, dims), attention_mask: new Tensor("int64", ids.map(() => 1n), dims),
  };
  if (folder.endsWith("bert")) {
    const model = await AutoModelForMaskedLM.from_pretrained(folder);
    return (await model(inputs)).logits.dims;
  }
  if (folder.endsWith("answers")) {
    const model = await AutoModelForQuestionAnswering.from_pretrained(folder);
    const { start_logits, end_logits } = await model(inputs);
    return [start_logits.tolist()[0], end_logits.tolist()[0]];
  }
  const model = await AutoModelForCausalLM.from_pretrained(folder);
  const output = await model.generate({ ...inputs, max_new_tokens: steps, do_sample: false });
  return output.tolist()[0].slice(ids.length).map(Number);
}
// A file of weights that is missing is a rejection that nobody handles, and a promise that is never kept.
let fail;
process.on("unhandledRejection", (error) => fail(error));
const found = [];
for (const folder of folders) {
  const done = new Promise((resolve, reject) => { fail = reject; run(folder).then(resolve, reject); });
  found.push(await done.catch(String));
}
console.log(JSON.stringify(found));
"""


def require(client, places):
    lacking = client.missing(places)
    if lacking is not None:
        pytest.skip(f"2026-11-22: needs a client that pip does not install here: {lacking}")


def in_node(folders, places):
    """Return what transformers.js generates from each folder: tokens, or its error message."""
    with with_modules(EXAMPLES / "node", places) as place:
        values = map(json.dumps, (PROMPT, STEPS, [str(folder) for folder in folders]))
        line = ["node", "--input-type=module", "--eval", RUN, *values]
        done = subprocess.run(line, cwd=place, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
