// OpenAI's client for Node: chat, streams, tools over two turns, structured output, responses.

import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const say = (call, value) => console.log(call, JSON.stringify(value));
const question = [{ role: "user", content: "What is 345 + 278?" }];
const parameters = {
  type: "object",
  properties: { city: { enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters, strict: true } }];

say("chat", (await client.chat.completions.create({ model, messages: question })).choices[0].message.content);

const pieces = [];
for await (const chunk of await client.chat.completions.create({ model, messages: question, stream: true })) {
  const piece = chunk.choices[0]?.delta?.content;
  if (piece) pieces.push(piece);
}
say("stream", pieces);

const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const first = (await client.chat.completions.create({ model, messages, tools })).choices[0].message;
say("tool call", first.tool_calls.map((call) => JSON.parse(call.function.arguments)));
messages.push(first);
for (const call of first.tool_calls) {
  messages.push({ role: "tool", tool_call_id: call.id, content: "22 degrees and sunny" });
}
say("tool answer", (await client.chat.completions.create({ model, messages, tools })).choices[0].message.content);

const runner = client.chat.completions.runTools({
  model,
  stream: true,
  messages: messages.slice(0, 1),
  tools: [
    {
      type: "function",
      function: {
        name: "weather",
        description: "Tells the weather of a city.",
        parameters,
        parse: JSON.parse,
        function: ({ city }) => `22 degrees and sunny in ${city}`,
      },
    },
  ],
});
say("streamed tool answer", await runner.finalContent());

const schema = {
  type: "object",
  properties: { label: { enum: ["good", "bad"] }, stars: { enum: [1, 2, 3] } },
  required: ["label", "stars"],
  additionalProperties: false,
};
const structured = await client.chat.completions.parse({
  model,
  messages: question,
  response_format: { type: "json_schema", json_schema: { name: "verdict", schema, strict: true } },
});
say("structured", structured.choices[0].message.parsed);

say("responses", (await client.responses.create({ model, input: "What is 345 + 278?" })).output_text);
const deltas = [];
for await (const event of await client.responses.create({ model, input: "What is 345 + 278?", stream: true })) {
  if (event.type === "response.output_text.delta") deltas.push(event.delta);
}
say("responses stream", deltas);
