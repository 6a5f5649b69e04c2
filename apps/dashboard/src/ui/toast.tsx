import { createContext, useCallback, useContext, useEffect, useState, type ReactNode } from "react";

const Say = createContext<(text: string) => void>(() => {});

/** Says in passing what was done. */
export const useToast = () => useContext(Say);

const shownMs = 7000;

export function Toasts({ children }: { children: ReactNode }) {
  const [text, setText] = useState("");
  useEffect(() => {
    if (!text) return;
    const t = setTimeout(() => setText(""), shownMs);
    return () => clearTimeout(t);
  }, [text]);
  return (
    <Say.Provider value={useCallback((t: string) => setText(t), [])}>
      {children}
      <div className="toast" role="status">
        {text}
      </div>
    </Say.Provider>
  );
}
