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

// Thousands of streams of a key find at the same time that it has to be looked up.
func TestKeyring_LooksAKeyUpOnceForAllWhoAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowKeys{}
		k := newKeyring(&server{cfg: Config{Store: store, KeyCacheTTL: 5 * time.Second}})
		key := model.APIKey{Hash: []byte("hash")}
		var all sync.WaitGroup
		impatient, cancel := context.WithCancel(t.Context())
		all.Go(func() {
			_, err := k.lookUp(impatient, key.Hash) // the first, whose going is of no matter to others
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

		// A call after a revocation joins no look-up from before it.
		time.Sleep(time.Minute)
		all.Go(func() { require.NoError(t, k.stillGood(t.Context(), key)) })
		synctest.Wait()
		store.revoked.Store(true)
		k.forget(key.Hash)
		require.Error(t, k.stillGood(t.Context(), key))
		all.Wait()
	})
}
