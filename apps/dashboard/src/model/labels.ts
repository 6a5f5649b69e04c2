// Labels of a region as a text with one NAME=VALUE in each line.

export const sortedLabels = (labels: Record<string, string>): [string, string][] => Object.entries(labels).sort(([a], [b]) => a.localeCompare(b));

export const labelsText = (labels: Record<string, string>): string =>
  sortedLabels(labels)
    .map(([name, value]) => `${name}=${value}`)
    .join("\n");

/** Reads the text. Throws if a line is no label, or a name comes twice. */
export function parseLabels(text: string): Record<string, string> {
  const out = new Map<string, string>();
  for (const line of text.split("\n").map((l) => l.trim())) {
    if (line === "") continue;
    const at = line.indexOf("=");
    const name = line.slice(0, at).trim();
    if (at < 0 || name === "") throw new Error(`${JSON.stringify(line)} is not NAME=VALUE`);
    if (out.has(name)) throw new Error(`label ${name} is there twice`);
    out.set(name, line.slice(at + 1).trim());
  }
  return Object.fromEntries(out);
}
