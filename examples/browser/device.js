// Chooses what computes: WebGPU where there is a GPU and a bundle for it, else WebAssembly. It always says why.

export const FOLDERS = { webgpu: "./model-webgpu", wasm: "./model" };

// Returns { device, why, folder, manifest }. asked: "webgpu", which also takes a driver in software, "wasm", or null.
export async function chooseDevice(asked) {
  const manifest = asked === "wasm" ? undefined : await readManifest("webgpu");
  const { why, obstacle } = asked === "wasm" ? { obstacle: "the address asks for it" } : await tryGpu(manifest, asked);
  if (why) return { device: "webgpu", why, folder: FOLDERS.webgpu, manifest };
  const other = await readManifest("wasm");
  if (!other) throw new Error(`there is no bundle at ${FOLDERS.wasm}, and WebGPU is out: ${obstacle}`);
  return { device: "wasm", why: obstacle, folder: FOLDERS.wasm, manifest: other };
}

// Returns { why } WebGPU runs a bundle here, or the { obstacle } to it.
async function tryGpu(manifest, asked) {
  if (!manifest) return { obstacle: `there is no bundle for WebGPU at ${FOLDERS.webgpu}` };
  if (!isSecureContext) return { obstacle: "WebGPU takes a page over https, or from localhost" };
  if (!navigator.gpu) return { obstacle: "this browser has no WebGPU" };
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
  if (!adapter) return { obstacle: "WebGPU found no GPU" };
  const software = adapter.info?.isFallbackAdapter;
  if (software && asked !== "webgpu") return { obstacle: "WebGPU would compute in software" };
  if (manifest.plan.arithmetic === "fp16" && !adapter.features.has("shader-f16"))
    return { obstacle: "the GPU has no float16, in which the bundle for WebGPU computes" };
  return { why: software ? "in software, as the address asks" : "this browser has a GPU for it" };
}

// A bundle that was exported anew has another manifest under the same address, so the browser has to ask the server.
async function readManifest(device) {
  const response = await fetch(`${FOLDERS[device]}/edgeformer.json`, { cache: "no-cache" });
  return response.ok ? response.json() : undefined;
}
