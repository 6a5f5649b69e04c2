package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// Page is a keyset page. It is the model's, for those who do not import store.
type Page = model.Page
