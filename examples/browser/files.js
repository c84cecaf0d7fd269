// The files of a bundle: downloaded once, and kept in the browser's cache under their hashes in edgeformer.json.

const CACHE = "edgeformer-bundles";

// report({ loaded, total, downloaded, speed }): bytes that are there, of all, from the network, and those per second.
// refuse(problem): says why a file is not what it should be; reading it fails, with an error that does not say so.
export async function openFiles(folder, manifest, report, refuse) {
  const base = new URL(`${folder}/`, location.href).href;
  const keyOf = (name) => `${base}${name}?sha256=${manifest.files[name].sha256}`;
  const cache = await self.caches?.open(CACHE).catch(() => null); // pages over http have none, and some private windows
  const wanted = Object.keys(manifest.files).filter(isRead(manifest));
  const total = wanted.reduce((sum, name) => sum + manifest.files[name].bytes, 0);
  const start = performance.now();
  let loaded = 0, downloaded = 0;

  const count = (name, bytes, fromNetwork) => {
    if (!wanted.includes(name)) return;
    loaded += bytes;
    if (fromNetwork) downloaded += bytes;
    report({ loaded, total, downloaded, speed: downloaded / ((performance.now() - start) / 1000) });
  };

  // What an earlier export left behind takes room that nothing reads.
  const current = new Set(Object.keys(manifest.files).map(keyOf));
  for (const { url } of (await cache?.keys()) ?? [])
    if (url.startsWith(base) && !current.has(url)) await cache.delete(url);

  async function download(name, url) {
    const response = await fetch(url, { cache: "no-store" });
    if (!response.ok) return response;
    const expected = manifest.files[name].bytes;
    let received = 0;
    const counter = new TransformStream({
      transform(chunk, out) {
        received += chunk.length;
        count(name, chunk.length, true);
        out.enqueue(chunk);
      },
      flush(out) {
        if (received === expected) return;
        const problem = `${name} has ${received} bytes, and edgeformer.json says ${expected}`;
        refuse(problem);
        out.error(new Error(problem));
      },
    });
    return new Response(response.body.pipeThrough(counter), { headers: { "content-length": expected } });
  }

  // What transformers.js calls for every file.
  return async function fetchFile(address, options) {
    const url = new URL(address, location.href).href;
    const name = url.slice(base.length);
    if (!url.startsWith(base) || !manifest.files[name]) return fetch(address, options);
    const kept = await cache?.match(keyOf(name));
    if (kept) {
      count(name, manifest.files[name].bytes, false);
      return kept;
    }
    const response = await download(name, url);
    if (!cache || !response.ok) return response;
    const [read, stored] = response.body.tee();
    // A full disk is no reason not to run: the file is then downloaded again next time.
    cache.put(keyOf(name), new Response(stored, response)).catch((error) => console.warn(`${name} is not kept:`, error));
    return new Response(read, response);
  };
}

// The graph that transformers.js opens, its files of weights, and the tokenizer.
function isRead(manifest) {
  const graph = manifest.graphs.model.file;
  return (name) => name === graph || name.startsWith(`${graph}_data`) || name === "tokenizer.json";
}
