// node trace_processor.cjs FOLDER : Perfetto's trace_processor as a pipe. Standard input is one TraceProcessorRpcStream, and
// so is standard output. FOLDER holds what scripts/need-trace-processor unpacks: the WebAssembly and the glue around it.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];
const edits = [
  // Memory of 32 bits is what the folder's WebAssembly was built for.
  ["this.useMemory64 = hasMemory64Support();", "this.useMemory64 = false;"],
  // There is no browser to fetch it.
  ["locateFile: (s) => s,", "locateFile: (s) => s, wasmBinary: globalThis.wasmBytes,"],
  ["const wasmBridge = new wasm_bridge_1.WasmBridge();", "const wasmBridge = globalThis.bridge = new wasm_bridge_1.WasmBridge();"],
];
let glue = fs.readFileSync(path.join(folder, "engine_bundle.node.js"), "utf8");
for (const [from, to] of edits) {
  if (!glue.includes(from)) throw new Error(`the glue lacks: ${from}`);
  glue = glue.replace(from, to);
}
console.log = console.warn = (...words) => process.stderr.write(`${words.join(" ")}\n`);
// The glue expects a browser's worker.
Object.defineProperty(globalThis, "self", { value: globalThis });
globalThis.WorkerGlobalScope = function WorkerGlobalScope() {};
Object.defineProperty(globalThis, "location", { value: { href: "file:///" } });
globalThis.wasmBytes = new Uint8Array(fs.readFileSync(path.join(folder, "trace_processor.wasm")));
vm.runInThisContext(glue);

const port = { postMessage: (reply) => fs.writeSync(1, reply) };
globalThis.bridge.initialize(port);
const poll = setInterval(() => {
  if (globalThis.bridge.reqBufferAddr === 0) return;
  clearInterval(poll);
  const asked = fs.readFileSync(0);
  const most = 1 << 24;
  for (let at = 0; at < asked.length; at += most) {
    port.onmessage({ data: new Uint8Array(asked.subarray(at, at + most)) });
  }
  process.exit(0);
}, 5);
