// Builds the page, and puts a copy for gzip and one for brotli beside each file that is sent often:
//
//   node scripts/build.mjs [OUTDIR]
import { readFile, readdir, writeFile } from "node:fs/promises";
import path from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { build } from "vite";

const outDir = path.resolve(process.argv[2] ?? "dist");
await build({ logLevel: "warn", build: { outDir, emptyOutDir: true } });

const assets = path.join(outDir, "assets");
for (const name of await readdir(assets)) {
  if (!/\.(js|css|svg)$/.test(name)) continue;
  const file = path.join(assets, name);
  const data = await readFile(file);
  await writeFile(`${file}.gz`, gzipSync(data, { level: 9 }));
  await writeFile(
    `${file}.br`,
    brotliCompressSync(data, { params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: data.length } }),
  );
}
