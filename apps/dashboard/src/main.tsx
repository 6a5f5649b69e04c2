import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { router } from "./router.js";
import "./styles.css";
import { SignedIn } from "./ui/session.js";
import { applyTheme } from "./ui/theme.js";
import { Toasts } from "./ui/toast.js";

applyTheme();

const queries = new QueryClient({ defaultOptions: { queries: { retry: 1, refetchOnWindowFocus: false } } });
const root = document.getElementById("root");
if (!root) throw new Error("the page has no element root");

createRoot(root).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      <Toasts>
        <SignedIn>
          <RouterProvider router={router} />
        </SignedIn>
      </Toasts>
    </QueryClientProvider>
  </StrictMode>,
);
