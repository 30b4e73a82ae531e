// Lists or calls tools of a gate with a client for TypeScript. Prints as JSON how the client reports
// the reply. The first argument is the folder of the packages. The second is the same JSON as
// for driver.py.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const ask = JSON.parse(process.argv[3]);
const { resolve } = createRequire(`${process.argv[2]}/x.js`);
const load = (name) => import(pathToFileURL(resolve(name)).href);
const transport = { requestInit: { headers: ask.headers } };

const told = (result, progress) => ({
  error: result.isError ?? false,
  text: result.content.map((block) => block.text ?? "").join("\n"),
  structured: result.structuredContent ?? null,
  progress,
});

async function talk(client, call) {
  const { tools } = await client.listTools();
  if (!ask.call) return { tools: tools.map((tool) => tool.name) };
  const progress = [];
  const options = ask.timeout ? { timeout: ask.timeout * 1000 } : {};
  if (ask.progress) options.onprogress = (step) => progress.push(step.message);
  if (ask.leaves) {
    const leaving = new AbortController();
    options.signal = leaving.signal;
    setTimeout(() => leaving.abort(), ask.leaves * 1000);
  }
  const [name, args] = ask.call;
  try {
    return told(await call({ name, arguments: args }, options), progress);
  } catch (error) {
    if (ask.leaves) {
      await new Promise((done) => setTimeout(done, 200));
      return { left: true };
    }
    throw error;
  }
}

const kinds = {
  async sdk() {
    const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await load("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const client = new Client({ name: "test", version: "1" });
    await client.connect(new StreamableHTTPClientTransport(new URL(ask.url), transport));
    return talk(client, (call, options) => client.callTool(call, undefined, options));
  },
  async client() {
    const { Client, StreamableHTTPClientTransport } = await load("@modelcontextprotocol/client");
    const versionNegotiation = { mode: ask.mode };
    const client = new Client({ name: "test", version: "1" }, { versionNegotiation });
    await client.connect(new StreamableHTTPClientTransport(new URL(ask.url), transport));
    return talk(client, (call, options) => client.callTool(call, options));
  },
  async ai_sdk() {
    const { createMCPClient } = await load("@ai-sdk/mcp");
    const client = await createMCPClient({ transport: { type: "http", url: ask.url, headers: ask.headers } });
    const tools = await client.tools();
    if (!ask.call) return { tools: Object.keys(tools) };
    const options = { messages: [], toolCallId: "call" };
    return told(await tools[ask.call[0]].execute(ask.call[1], options));
  },
};

const said = await kinds[ask.kind]().catch((error) => ({ thrown: `${error}` }));
console.log(JSON.stringify(said));
process.exit(0);
