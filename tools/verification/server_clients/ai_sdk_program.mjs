// The AI SDK with @ai-sdk/openai-compatible: text, streams, tools over several steps, structured output.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, name] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "edgeformer",
  baseURL: `${url}/v1`,
  supportsStructuredOutputs: true,
  includeUsage: true,
});
const model = provider(name);
const say = (call, value) => console.log(call, JSON.stringify(value));
const weather = tool({
  description: "Tells the weather of a city.",
  inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }),
  execute: async ({ city }) => `22 degrees and sunny in ${city}`,
});

say("chat", (await generateText({ model, prompt: "What is 345 + 278?" })).text);

const stream = streamText({ model, prompt: "What is 345 + 278?" });
const pieces = [];
for await (const piece of stream.textStream) pieces.push(piece);
say("stream", pieces);
say("usage", (await stream.usage).outputTokens);

const asked = { model, tools: { weather }, stopWhen: stepCountIs(3), prompt: "What is the weather in Paris?" };
const called = await generateText(asked);
say("tool call", called.steps.flatMap((step) => step.toolCalls).map((call) => call.input));
say("tool answer", called.text);

const streamed = streamText(asked);
let text = "";
for await (const piece of streamed.textStream) text += piece;
say("streamed tool answer", text);
say("streamed tool call", (await streamed.steps).flatMap((step) => step.toolCalls).map((call) => call.input));

const forced = await generateText({ model, tools: { weather }, toolChoice: "required", prompt: "Hello" });
say("required tool", forced.toolCalls[0].toolName);

const schema = z.object({
  label: z.enum(["good", "bad"]),
  stars: z.union([z.literal(1), z.literal(2), z.literal(3)]),
});
say("structured", (await generateObject({ model, schema, prompt: "What is 345 + 278?" })).object);
