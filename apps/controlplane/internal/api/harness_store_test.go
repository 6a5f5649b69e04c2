package api_test

import (
	"testing"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
)

// newStore is the store that the API is tested with.
func newStore(*testing.T) store.Store {
	return memory.New(func() int64 { return time.Now().UnixMilli() })
}
