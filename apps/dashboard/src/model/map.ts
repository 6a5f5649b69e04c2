// How a map of the fleet is laid out: which part of the world, which regions share a mark, where names have room.

export type Point = { x: number; y: number };
export type Frame = { scale: number; x: number; y: number };

/** At most so much larger than the whole world. */
const maxScale = 5;

/**
 * How points of the whole world, which is as large as the view, move so that `points` fill the view: a point moves to
 * (x + scale * point.x, y + scale * point.y). The view never shows what is outside of the world.
 */
export function frameOf(points: Point[], width: number, height: number): Frame {
  if (points.length === 0) return { scale: 1, x: 0, y: 0 };
  const xs = points.map((p) => p.x);
  const ys = points.map((p) => p.y);
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  // Room around the outermost marks, for their names and for the land that says where they are.
  const scale = Math.max(1, Math.min(maxScale, (width * 0.7) / Math.max(right - left, 1), (height * 0.6) / Math.max(bottom - top, 1)));
  const shift = (middle: number, size: number) => Math.min(0, Math.max(size - size * scale, size / 2 - middle * scale));
  return { scale, x: shift((left + right) / 2, width), y: shift((top + bottom) / 2, height) };
}

export type Group<T> = Point & { members: T[] };

/** Groups points that are less than `apart` from each other, so that each mark can be seen and pressed. A group is in the middle of its members. */
export function groupPoints<T extends Point>(points: T[], apart: number): Group<T>[] {
  // Many regions are in the same place, and comparing each with each other would take seconds.
  const places = new Map<string, Group<T>>();
  for (const p of points) {
    const key = `${Math.round(p.x)},${Math.round(p.y)}`;
    const group = places.get(key);
    if (group) group.members.push(p);
    else places.set(key, { x: p.x, y: p.y, members: [p] });
  }
  let groups = [...places.values()];
  for (;;) {
    let nearest: [number, number] | undefined;
    let least = apart;
    for (let i = 0; i < groups.length; i++)
      for (let j = i + 1; j < groups.length; j++) {
        const distance = Math.hypot(groups[i]!.x - groups[j]!.x, groups[i]!.y - groups[j]!.y);
        if (distance < least) [least, nearest] = [distance, [i, j]];
      }
    if (!nearest) return groups;
    const [i, j] = nearest;
    const members = [...groups[i]!.members, ...groups[j]!.members];
    const mean = (of: (p: T) => number) => members.reduce((sum, m) => sum + of(m), 0) / members.length;
    groups = [...groups.filter((_, k) => k !== i && k !== j), { x: mean((m) => m.x), y: mean((m) => m.y), members }];
  }
}

export type Box = { left: number; top: number; width: number; height: number };

const overlaps = (a: Box, b: Box) => a.left < b.left + b.width && b.left < a.left + a.width && a.top < b.top + b.height && b.top < a.top + a.height;

/** Where the text of each mark has room: to its right, to its left, below or above. null: nowhere, and the text is left out. */
export function placeTexts(marks: (Point & { width: number; height: number })[], radius: number, view: { width: number; height: number }): (Box | null)[] {
  const taken: Box[] = marks.map((m) => ({ left: m.x - radius, top: m.y - radius, width: 2 * radius, height: 2 * radius }));
  return marks.map((m) => {
    const { width, height } = m;
    const gap = radius + 4;
    const candidates = [
      { left: m.x + gap, top: m.y - height / 2 },
      { left: m.x - gap - width, top: m.y - height / 2 },
      { left: m.x - width / 2, top: m.y + gap },
      { left: m.x - width / 2, top: m.y - gap - height },
    ];
    for (const c of candidates) {
      const box = { ...c, width, height };
      if (box.left < 0 || box.top < 0 || box.left + width > view.width || box.top + height > view.height) continue;
      if (taken.some((t) => overlaps(t, box))) continue;
      taken.push(box);
      return box;
    }
    return null;
  });
}
