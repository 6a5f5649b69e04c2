package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// Page is a keyset page. Its type is in model, for packages that do not import store.
type Page = model.Page
