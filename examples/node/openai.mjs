// A chat, a stream, JSON that follows a schema, a tool call and embeddings from `edgeformer serve`, by OpenAI's client.
//
//   npm install --ignore-scripts
//   node openai.mjs http://127.0.0.1:8000/v1 CHAT_MODEL [TOOL_MODEL] [EMBEDDING_MODEL]
//
// A key, if the server has one, is read from OPENAI_API_KEY.

import OpenAI from "openai";

const [baseURL, model, toolModel, embeddingModel] = process.argv.slice(2);
if (!model) {
  console.error("usage: node openai.mjs URL CHAT_MODEL [TOOL_MODEL] [EMBEDDING_MODEL]");
  process.exit(2);
}
const client = new OpenAI({ baseURL, apiKey: process.env.OPENAI_API_KEY ?? "none" });
const messages = [{ role: "user", content: "What is 345 + 278?" }];

const chat = await client.chat.completions.create({ model, messages });
console.log("chat", JSON.stringify(chat.choices[0].message.content));

const pieces = [];
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
  const piece = chunk.choices[0]?.delta?.content;
  if (piece) pieces.push(piece);
}
console.log("stream", JSON.stringify(pieces));

const schema = {
  type: "object",
  properties: { sum: { type: "integer" }, even: { type: "boolean" } },
  required: ["sum", "even"],
  additionalProperties: false,
};
const structured = await client.chat.completions.create({
  model,
  messages,
  response_format: { type: "json_schema", json_schema: { name: "answer", schema, strict: true } },
});
console.log("schema", JSON.stringify(JSON.parse(structured.choices[0].message.content)));

if (toolModel) {
  const parameters = {
    type: "object",
    properties: { city: { enum: ["Paris", "Rome"] } },
    required: ["city"],
    additionalProperties: false,
  };
  const called = await client.chat.completions.create({
    model: toolModel,
    messages: [{ role: "user", content: "What is the weather in Paris?" }],
    tools: [{ type: "function", function: { name: "weather", parameters } }],
    tool_choice: "required",
  });
  const call = called.choices[0].message.tool_calls[0].function;
  console.log("tool", JSON.stringify({ name: call.name, arguments: JSON.parse(call.arguments) }));
}

if (embeddingModel) {
  const input = ["A dog barks.", "A cat sleeps on the old sofa."];
  const { data } = await client.embeddings.create({ model: embeddingModel, input });
  console.log("embeddings", JSON.stringify(data.map((each) => each.embedding.slice(0, 4))));
}
