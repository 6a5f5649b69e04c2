// Times of the API are unix milliseconds; 0 is never.

export const ms = (t: bigint | undefined) => Number(t ?? 0n);

const units: [number, string][] = [
  [86_400_000, "d"],
  [3_600_000, "h"],
  [60_000, "min"],
  [1000, "s"],
];

/** A duration by its largest unit: "12 s", "4 min". */
export function duration(length: number): string {
  for (const [size, name] of units) if (length >= size) return `${Math.floor(length / size)} ${name}`;
  return "0 s";
}

/** "4 min ago", "in 30 s", or "just now". */
export function relative(at: number, now: number): string {
  const distance = Math.abs(now - at);
  if (distance < 2000) return "just now";
  return at <= now ? `${duration(distance)} ago` : `in ${duration(distance)}`;
}

const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
export const absolute = (at: number) => full.format(at);
