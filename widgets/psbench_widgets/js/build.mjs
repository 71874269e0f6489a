// Bundle the browser half into ../static/engine.js and gather the licences of what went into it.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { existsSync, readFileSync, readdirSync, writeFileSync } from "node:fs";

// a test compares it with the sources, so that nobody commits the one without the other
const sources = createHash("sha256");
for (const file of readdirSync(".").sort()) {
  if (/\.(js|mjs|css)$|^package.*json$/.test(file)) sources.update(readFileSync(file));
}

const result = await build({
  entryPoints: ["engine.js"],
  outfile: "../static/engine.js",
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2021",
  loader: { ".css": "text" },
  metafile: true,
  legalComments: "none",
  banner: { js: `// made from sources of sha256 ${sources.digest("hex")}` },
  logLevel: "info",
});

const packages = new Set();
for (const file of Object.keys(result.metafile.inputs)) {
  const found = file.match(/^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//);
  if (found) packages.add(found[1]);
}
const notices = [...packages].sort().map((folder) => {
  const meta = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  const file = readdirSync(folder).find((name) => /^licen[cs]e/i.test(name));
  const text =
    file && existsSync(`${folder}/${file}`) ? readFileSync(`${folder}/${file}`, "utf8").trim() : "";
  return { head: `${meta.name} ${meta.version} (${meta.license})`, text };
});
// many packages share one text, word for word: print it once
const byText = new Map();
for (const { head, text } of notices) byText.set(text, [...(byText.get(text) ?? []), head]);
const blocks = [...byText].map(([text, heads]) => `${heads.join("\n")}\n\n${text}`);
writeFileSync("../static/THIRD_PARTY_LICENSES.txt", blocks.join(`\n\n${"-".repeat(80)}\n\n`) + "\n");
