// Chooses what computes: WebGPU where there is a GPU and a bundle for it, else WebAssembly. It always says why.

// The bundles, the best one first. f16 computes in float16, which not every GPU can.
export const FOLDERS = { f16: "./model-webgpu-f16", webgpu: "./model-webgpu", wasm: "./model" };

// Returns { device, why, folder, manifest }. asked: "webgpu", which also takes a driver in software, "wasm", or null.
export async function chooseDevice(asked) {
  const { adapter, why, obstacle } = asked === "wasm" ? { obstacle: "the address asks for it" } : await findGpu(asked);
  const found = adapter ? await findBundle(adapter) : {};
  if (found.folder) return { device: "webgpu", why: why + found.remark, folder: found.folder, manifest: found.manifest };
  const other = await readManifest(FOLDERS.wasm);
  const because = obstacle ?? found.obstacle;
  if (!other) throw new Error(`there is no bundle at ${FOLDERS.wasm}, and WebGPU is out: ${because}`);
  return { device: "wasm", why: because, folder: FOLDERS.wasm, manifest: other };
}

// Returns { adapter, why } WebGPU runs here, or the { obstacle } to it.
async function findGpu(asked) {
  if (!isSecureContext) return { obstacle: "WebGPU takes a page over https, or from localhost" };
  if (!navigator.gpu) return { obstacle: "this browser has no WebGPU" };
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
  if (!adapter) return { obstacle: "WebGPU found no GPU" };
  const software = adapter.info?.isFallbackAdapter;
  if (software && asked !== "webgpu") return { obstacle: "WebGPU would compute in software" };
  return { adapter, why: software ? "in software, as the address asks" : "this browser has a GPU for it" };
}

// Returns { folder, manifest, remark } of the best bundle that an adapter runs, or the { obstacle } to all of them.
async function findBundle(adapter) {
  let obstacle = `there is no bundle for WebGPU at ${FOLDERS.webgpu}`;
  for (const folder of [FOLDERS.f16, FOLDERS.webgpu]) {
    const manifest = await readManifest(folder);
    const half = manifest?.plan.arithmetic === "fp16";
    if (manifest && (!half || adapter.features.has("shader-f16")))
      return { folder, manifest, remark: half ? ", and it has float16" : "" };
    if (manifest) obstacle = "the GPU has no float16, in which the bundle for WebGPU computes";
  }
  return { obstacle };
}

// A bundle that was exported anew has another manifest under the same address, so the browser has to ask the server.
async function readManifest(folder) {
  const response = await fetch(`${folder}/edgeformer.json`, { cache: "no-cache" });
  return response.ok ? response.json() : undefined;
}
