//go:build record

package dispatch_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protodelim"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
)

// TestRecord records a stream of this version. Agents of later versions must still understand it:
//
//	go test -tags record -run TestRecord ./apps/controlplane/internal/dispatch
//
// Each release adds a recording. Recordings are never changed.
func TestRecord(t *testing.T) {
	h := setup(t, 20*time.Millisecond)
	for i := 1; i <= 3; i++ {
		h.deploy(fmt.Sprintf("dep_%d", i), 1, starting)
	}
	w := newWatcher(t, "session-recorded")
	stop := w.connect(h)
	w.until("dep_3", 1)
	h.deploy("dep_2", 2, starting)
	h.deploy("dep_3", 2, stopping)
	h.update(func(tx store.Tx) error {
		tx.Change(region, model.KindRoutes, "app_1", 1)
		return errors.Join(tx.PutRoutes([]model.Route{{WorkspaceID: "ws_1", AppID: "app_1", RegionID: region, Hosts: []string{"a.windlass.local"}, Generation: 1}}))
	})
	w.until("dep_3", 2)
	w.until("app_1", 1)
	for w.step().GetBookmark() == nil {
	}
	stop()

	path := filepath.Join("..", "..", "..", "agent", "internal", "session", "testdata", "recorded", "watch-1.binpb")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	f, err := os.Create(path)
	require.NoError(t, err)
	for _, frame := range w.all {
		_, err := protodelim.MarshalTo(f, frame)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
}
