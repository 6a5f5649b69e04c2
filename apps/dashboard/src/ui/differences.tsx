import type { Change } from "../model/diff.js";

const hidden = <span className="dim">value is not shown</span>;

function Value({ change: c, side }: { change: Change; side: "old" | "new" }) {
  if (side === "old" ? c.kind === "added" : c.kind === "removed") return <span className="dim">not set</span>;
  if (c.hidden) return hidden;
  const text = c[side];
  return text === "" ? <span className="dim">empty</span> : <code className={`diff-${side}`}>{text}</code>;
}

/** Fields that differ: by path, what they were and what they become. */
export function Differences({ changes, before, after, none }: { changes: Change[]; before: string; after: string; none: string }) {
  if (changes.length === 0) return <p className="dim">{none}</p>;
  return (
    <table className="rows diff" role="table" aria-label={`From ${before} to ${after}`}>
      <thead role="rowgroup">
        <tr role="row">
          <th scope="col" role="columnheader">
            Field
          </th>
          <th scope="col" role="columnheader">
            {before}
          </th>
          <th scope="col" role="columnheader">
            {after}
          </th>
        </tr>
      </thead>
      <tbody role="rowgroup">
        {changes.map((c) => (
          <tr key={c.path} role="row">
            <th scope="row" role="rowheader">
              <code>{c.path}</code> <span className={`kind ${c.kind}`}>{c.kind}</span>
            </th>
            <td role="cell" data-label={before}>
              <Value change={c} side="old" />
            </td>
            <td role="cell" data-label={after}>
              <Value change={c} side="new" />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
