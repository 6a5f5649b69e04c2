package api_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/memory"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store/mysql"
	"github.com/windlass-run/windlass/pkg/localstack/stacktest"
)

// newStore returns the store for most tests of the API.
func newStore(*testing.T) store.Store {
	return memory.New(func() int64 { return time.Now().UnixMilli() })
}

// newDatabase returns the real database, for tests that depend on its locks.
func newDatabase(t *testing.T) store.Store {
	s, err := mysql.Open(t.Context(), mysql.Config{DSN: stacktest.MariaDB(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}
