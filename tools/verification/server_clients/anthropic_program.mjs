// Anthropic's client for Node: messages, streams, tools over two turns, counts.

import Anthropic from "@anthropic-ai/sdk";

const [baseURL, model] = process.argv.slice(2);
const client = new Anthropic({ baseURL, apiKey: "none" });
const say = (call, value) => console.log(call, JSON.stringify(value));
const question = [{ role: "user", content: "What is 345 + 278?" }];
const tools = [
  {
    name: "weather",
    description: "Tells the weather of a city.",
    input_schema: { type: "object", properties: { city: { enum: ["Paris", "Rome"] } }, required: ["city"] },
  },
];

const message = await client.messages.create({ model, max_tokens: 100, messages: question });
say("chat", message.content[0].text);

const pieces = [];
const stream = client.messages.stream({ model, max_tokens: 100, messages: question });
stream.on("text", (piece) => pieces.push(piece));
await stream.finalMessage();
say("stream", pieces);

say("count", (await client.messages.countTokens({ model, messages: question })).input_tokens);

const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const response = await client.messages.create({ model, max_tokens: 100, tools, messages });
const calls = response.content.filter((block) => block.type === "tool_use");
say("tool call", calls.map((call) => call.input));
messages.push({ role: "assistant", content: response.content });
messages.push({
  role: "user",
  content: calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: "22 degrees and sunny" })),
});
const answer = await client.messages.create({ model, max_tokens: 100, tools, messages });
say("tool answer", answer.content[0].text);

const streaming = client.messages.stream({ model, max_tokens: 100, tools, messages: messages.slice(0, 1) });
const final = await streaming.finalMessage();
say("streamed tool call", final.content.filter((block) => block.type === "tool_use").map((call) => call.input));

const forced = await client.messages.create({
  model,
  max_tokens: 100,
  tools,
  messages: [{ role: "user", content: "Hello" }],
  tool_choice: { type: "any" },
});
say("required tool", forced.content[0].name);
