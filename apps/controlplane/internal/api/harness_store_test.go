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

// newStore is the store that the API is tested with.
func newStore(*testing.T) store.Store {
	return memory.New(func() int64 { return time.Now().UnixMilli() })
}

// newDatabase is the real one, for what is claimed of its locks.
func newDatabase(t *testing.T) store.Store {
	s, err := mysql.Open(t.Context(), mysql.Config{DSN: stacktest.MariaDB(t)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}
