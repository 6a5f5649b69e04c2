import type { ReactNode } from "react";
import { explain } from "../api/clients.js";
import type { Pages } from "../api/pages.js";
import { Loading } from "./pieces.js";

export type Column<T> = {
  name: string;
  cell: (item: T) => ReactNode;
  /** Its header is for screen readers alone: the cells say what they are. */
  quiet?: boolean;
};

/** A table whose rows become blocks on narrow screens. Roles are stated, because a browser drops those of a table that is laid out as blocks. */
export function Rows<T>({ label, columns, items, keyOf }: { label: string; columns: Column<T>[]; items: T[]; keyOf: (item: T) => string }) {
  return (
    <table className="rows" role="table" aria-label={label}>
      <thead role="rowgroup">
        <tr role="row">
          {columns.map((c) => (
            <th key={c.name} scope="col" role="columnheader">
              {c.quiet ? <span className="visually-hidden">{c.name}</span> : c.name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody role="rowgroup">
        {items.map((item) => (
          <tr key={keyOf(item)} role="row">
            {columns.map((c) => (
              <td key={c.name} role="cell">
                {c.cell(item)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** A list in pages: it is being read, it failed, it is empty, or its items and a button for more. */
export function Paged<T>({ pages, what, empty, children }: { pages: Pages<T>; what: string; empty: ReactNode; children: (items: T[]) => ReactNode }) {
  const failed = pages.error ? (
    <div className="note bad" role="alert">
      <p>{explain(pages.error)}</p>
      <button type="button" className="button small" onClick={pages.refetch}>
        Try again
      </button>
    </div>
  ) : null;
  if (pages.items.length === 0) return failed ?? (pages.pending ? <Loading what={what} /> : empty);
  return (
    <>
      {failed}
      {children(pages.items)}
      {pages.more ? (
        <div className="buttons more">
          <button type="button" className="button" disabled={pages.loadingMore} onClick={pages.loadMore}>
            {pages.loadingMore ? "Reading …" : "Show more"}
          </button>
        </div>
      ) : null}
    </>
  );
}
