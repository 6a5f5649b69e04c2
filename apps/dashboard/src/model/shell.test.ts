// @vitest-environment node
import { execFileSync } from "node:child_process";
import { expect, it } from "vitest";
import { logsCommand } from "./logs.js";
import { quoted, windlass } from "./shell.js";
import { tryCommand } from "./try.js";

const hostile = ["'; rm -rf ~ #", "a\nrm -rf ~", "$(id)", "`id`", "a b", "", "~", "=ls", "*", "a\\", "!!", "\u0003\u0015rm -rf ~\r", "tab\there", "\u007f\u007fid", "it's \u009b2J", "-rf", "--help", "ä\u{1f600}"];

/** What a shell makes of a line: its words, except for the first, which is replaced with printf. */
const wordsOf = (line: string) => execFileSync("bash", ["-c", `f() { printf '%s\\0' "$@"; }; f ${line}`], { encoding: "utf8" }).split("\0").slice(0, -1);

it("quotes a text as one word of a shell, which the shell reads as the text", () => {
  for (const text of hostile) {
    expect(wordsOf(quoted(text)), JSON.stringify(text)).toEqual([text]);
  }
  expect(wordsOf(hostile.map(quoted).join(" "))).toEqual(hostile);
});

it("leaves plain words as they are, and shows others in one line of quotes where that is possible", () => {
  expect(["default/production/chat", "v3", "a=b,c", "x@1.2:3%+"].map(quoted)).toEqual(["default/production/chat", "v3", "a=b,c", "x@1.2:3%+"]);
  expect(quoted("'; rm -rf ~ #")).toBe(`''\\''; rm -rf ~ #'`);
  expect(quoted("a\nb")).toBe("'a\nb'");
  expect(quoted("=ls")).toBe("'=ls'");
  expect(quoted("")).toBe("''");
});

it("sends no control character to a terminal, because it acts on them within quotes too", () => {
  for (const text of hostile) {
    // eslint-disable-next-line no-control-regex
    expect(quoted(text)).not.toMatch(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/);
  }
  expect(quoted("\u0003it's\\\n")).toBe("$'\\003it\\047s\\134\\012'");
});

it("makes command lines of windlass whose arguments are never flags", () => {
  expect(windlass("region token", ["eu-west-1"])).toBe("windlass region token eu-west-1");
  expect(windlass("workspace quota", ["acme"], ["--gpus", "64"])).toBe("windlass workspace quota acme --gpus 64");
  expect(windlass("workspace quota", ["--help"], ["--gpus", "64"])).toBe("windlass workspace quota --gpus 64 -- --help");
  for (const text of hostile) {
    expect(wordsOf(windlass("preset diff", [text])).at(-1)).toBe(text);
    expect(wordsOf(windlass("env set", [text, "LOG_LEVEL=debug"])).slice(-2)).toEqual([text, "LOG_LEVEL=debug"]);
  }
});

it("quotes what others named in the commands of logs and of requests", () => {
  const filter = { instance: "", region: "", role: "", version: 0, minutes: 0, grep: "" };
  for (const text of hostile) {
    if (text !== "") expect(wordsOf(logsCommand("chat", { ...filter, instance: text }))).toContain(text);
    expect(wordsOf(logsCommand(text, filter)).at(-1)).toBe(text);
    if (text !== "") expect(wordsOf(logsCommand("chat", { ...filter, grep: text, role: text, region: text })).filter((w) => w === text)).toHaveLength(3);
    expect(wordsOf(tryCommand("completions", `http://x/${text}`, text, text, false)).slice(1, 3)).toEqual(["-sN", `http://x/${text}/v1/completions`]);
    expect(JSON.parse(wordsOf(tryCommand("completions", "http://x", text, text, false)).at(-1)!)).toMatchObject({ model: text, prompt: text });
  }
});

it("no page puts a name into a command without quotes", () => {
  const pages = import.meta.glob<string>(["../pages/*.tsx", "../ui/*.tsx", "./*.ts", "!./*.test.ts"], { query: "?raw", import: "default", eager: true });
  expect(Object.keys(pages).length).toBeGreaterThan(30);
  for (const [file, text] of Object.entries(pages)) {
    const lines = text.split("\n").filter((l) => !/^\s*(\/\/|\*|\/\*)/.test(l));
    expect(lines.filter((l) => /[`"'>](windlass|curl|kubectl|helm) [^`"'<]*\{(?!quoted\()/.test(l)), file).toEqual([]);
    expect(lines.filter((l) => /\\nwindlass [^`]*\$\{/.test(l)), file).toEqual([]);
  }
});
