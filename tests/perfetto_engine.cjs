// Perfetto's trace processor, the WebAssembly of its web page, in Node: requests from stdin, replies to stdout.
const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");

const folder = process.argv[2];

class XMLHttpRequest {
  open(_, name) {
    this.name = name;
  }
  send() {
    this.response = Uint8Array.from(fs.readFileSync(path.join(folder, path.basename(this.name)))).buffer;
  }
}

const tell = (text) => fs.writeSync(2, `${text}\n`);
// the bundle runs in a web worker alone, which it takes everything for that has no `process`
const worker = vm.createContext({
  XMLHttpRequest, TextDecoder, TextEncoder, performance, crypto, setTimeout, clearTimeout,
  console: { log: tell, warn: tell, error: tell },
  location: { href: "https://localhost/engine_bundle.js" },
  importScripts: () => {},
  request: fs.readFileSync(0),
});
worker.self = worker;
worker.WorkerGlobalScope = Object;
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), worker);
const port = {
  postMessage(reply) {
    for (let at = 0; at < reply.length; ) at += fs.writeSync(1, reply, at);
  },
};
worker.onmessage({ data: port });
setTimeout(() => port.onmessage({ data: vm.runInContext("new Uint8Array(request)", worker) }), 0);
