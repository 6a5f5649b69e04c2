package api

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// slowKeys is a store that takes a second to find a key.
type slowKeys struct {
	Store
	Tx

	looked  atomic.Int32
	revoked atomic.Bool
}

func (s *slowKeys) View(_ context.Context, fn func(Tx) error) error { return fn(s) }

func (s *slowKeys) GetAPIKeyByHash(hash []byte) (key model.APIKey, err error) {
	s.looked.Add(1)
	key.Hash = hash
	if s.revoked.Load() {
		key.RevokedAt = 1
	}
	time.Sleep(time.Second)
	return key, nil
}

// Thousands of streams of a key may need a look-up at the same time.
func TestKeyring_LooksUpAKeyOnceForConcurrentCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowKeys{}
		k := newKeyring(&server{cfg: Config{Store: store, KeyCacheTTL: 5 * time.Second}})
		key := model.APIKey{Hash: []byte("hash")}
		var all sync.WaitGroup
		impatient, cancel := context.WithCancel(t.Context())
		all.Go(func() {
			_, err := k.lookUp(impatient, key.Hash) // the first caller leaves early, and other callers still get the key
			require.ErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		for range 100 {
			all.Go(func() { require.NoError(t, k.stillGood(t.Context(), key)) })
		}
		synctest.Wait()
		cancel()
		all.Wait()
		require.Equal(t, int32(1), store.looked.Load())

		// A call after a revocation does not join a look-up that began before it.
		time.Sleep(time.Minute)
		all.Go(func() { require.NoError(t, k.stillGood(t.Context(), key)) })
		synctest.Wait()
		store.revoked.Store(true)
		k.forgetKey(key.Hash)
		require.Error(t, k.stillGood(t.Context(), key))
		all.Wait()
	})
}
