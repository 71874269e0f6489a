// Runs a script of Python in Pyodide: node open_run.mjs FOLDER REPOSITORY RUN SCRIPT; see test_without_torch.py.
import fs from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, repository, run, script] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${folder}/node_modules/pyodide/pyodide.mjs`));
const python = await loadPyodide();
for (const name of fs.readdirSync(`${folder}/wheels`)) {
  python.unpackArchive(new Uint8Array(fs.readFileSync(`${folder}/wheels/${name}`)), "wheel");
}
for (const [at, root] of [["/psbench", repository], ["/run", run]]) {
  python.FS.mkdirTree(at);
  python.mountNodeFS(at, root);
}
python.globals.set("argv", python.toPy([script, "/run"]));
python.runPython('import sys; sys.argv = argv; sys.path[:0] = ["/psbench", "/psbench/widgets"]');
try {
  python.runPython(script);
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
