import { useLocation } from "@tanstack/react-router";
import { useEffect, useRef, type ReactNode } from "react";

/** Links to pages that belong together. On a narrow screen they scroll, and the one of the page that is shown is in view. */
export function Tabs({ label, children, className = "tabs" }: { label: string; children: ReactNode; className?: string }) {
  const nav = useRef<HTMLElement>(null);
  const path = useLocation({ select: (l) => l.pathname });
  useEffect(() => {
    const box = nav.current;
    const link = box?.querySelector<HTMLElement>('[aria-current="page"]');
    if (!box || !link) return;
    const left = link.offsetLeft - box.offsetLeft;
    if (left < box.scrollLeft || left + link.offsetWidth > box.scrollLeft + box.clientWidth) box.scrollLeft = left + link.offsetWidth - box.clientWidth + 12;
  }, [path]);
  return (
    <nav ref={nav} className={className} aria-label={label}>
      {children}
    </nav>
  );
}
