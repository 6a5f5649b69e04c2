// Command lines to copy into a terminal. Names and texts in them come from other people and from addresses.

// No "=" at the beginning, because zsh expands =NAME to the path of a program.
const plain = /^[\w.:/@%+,-][\w.:/@%+=,-]*$/;

// A terminal acts on control characters while text is pasted: one of them clears the line, another ends it.
// A line feed within quotes only continues the line.
// eslint-disable-next-line no-control-regex
const controls = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f]/;
// eslint-disable-next-line no-control-regex
const escaped = /[\u0000-\u001f\u007f-\u009f'\\]/g;

const octal = (c: string) => [...new TextEncoder().encode(c)].map((b) => `\\${b.toString(8).padStart(3, "0")}`).join("");

/** Quotes a text as one word of a POSIX shell. A word that needs no quotes stays as it is. A text with control characters becomes $'…', which bash, zsh and ksh know. */
export function quoted(text: string): string {
  if (plain.test(text)) return text;
  if (controls.test(text)) return `$'${text.replace(escaped, octal)}'`;
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/**
 * A command line of `windlass`. `command` is its subcommand and fixed words. `args` and `flags` are quoted.
 * Arguments come after "--" if one of them could be read as a flag.
 */
export function windlass(command: string, args: string[] = [], flags: string[] = []): string {
  const words = args.some((a) => a.startsWith("-")) ? [...flags, "--", ...args] : [...args, ...flags];
  return ["windlass", command, ...words.map(quoted)].join(" ");
}
