import { useEffect, useRef } from "react";
import { Command } from "./pieces.js";

export type Made = { what: string; value: string };

/** A value that the control plane shows once. It is kept by nothing but this page, until it is put away or the page is left. */
export function Once({ made, close }: { made: Made; close: () => void }) {
  const box = useRef<HTMLElement>(null);
  useEffect(() => box.current?.focus(), [made]);
  return (
    <section ref={box} tabIndex={-1} className="panel once" aria-label={`${made.what}, shown once`}>
      <div className="body stack tight">
        <p>
          <b>{made.what} was made. Copy its value now: it is not shown again.</b>
        </p>
        {made.value ? (
          <Command text={made.value} what="the value" />
        ) : (
          <p className="note warn">The control plane did not send the value, because an earlier try of the same call made it. Revoke it, and make another.</p>
        )}
        <div className="buttons">
          <button type="button" className="button" onClick={close}>
            I have kept it
          </button>
        </div>
      </div>
    </section>
  );
}
