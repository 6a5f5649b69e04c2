package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// shelf is a store that only serves items. Each read takes a second.
type shelf struct {
	Store
	Tx
	bad string // region whose items cannot be decoded

	mu    sync.Mutex
	reads [][]string // regions of each read
}

func (s *shelf) View(ctx context.Context, fn func(Tx) error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Second):
	}
	return fn(s)
}

func (s *shelf) DesiredItems(kind model.ChangeKind, keys map[string][]string) ([]model.DesiredItem, error) {
	var regions []string
	var items []model.DesiredItem
	for region, names := range keys {
		regions = append(regions, region)
		for _, name := range names {
			items = append(items, model.DesiredItem{RegionID: region, Kind: kind, Key: name})
		}
	}
	slices.Sort(regions)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads = append(s.reads, regions)
	if slices.Contains(regions, s.bad) {
		return nil, errors.New("not understood")
	}
	return items, nil
}

func deploymentKeys(names ...string) (keys []changefeed.Key) {
	for _, n := range names {
		keys = append(keys, changefeed.Key{Kind: model.KindDeployment, Name: n})
	}
	return keys
}

func TestReader_ConcurrentStreamsShareARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{bad: "reg_99"}
		r := &reader{store: s}
		var all sync.WaitGroup
		ask := func(region string, check func([]model.DesiredItem, error)) {
			all.Go(func() { check(r.readItems(t.Context(), region, deploymentKeys("dep_of_"+region))) })
			synctest.Wait()
		}
		whole := func(region string) func([]model.DesiredItem, error) {
			return func(rows []model.DesiredItem, err error) {
				require.NoError(t, err)
				require.Equal(t, []model.DesiredItem{{RegionID: region, Kind: model.KindDeployment, Key: "dep_of_" + region}}, rows)
			}
		}
		for i := range 50 {
			region := fmt.Sprintf("reg_%02d", i)
			ask(region, whole(region))
		}
		all.Wait()
		synctest.Wait()
		require.Len(t, s.reads, 3, "two reads begin at once, and the third has all other requests")
		require.Len(t, s.reads[2], 48)

		s.reads = nil
		ask("reg_01", whole("reg_01"))
		ask("reg_02", whole("reg_02"))
		ask("reg_03", whole("reg_03"))
		ask("reg_03", whole("reg_03")) // a stream and its replacement
		ask("reg_99", func(_ []model.DesiredItem, err error) {
			require.ErrorContains(t, err, "read 1 items of region reg_99: not understood")
		})
		ask("reg_04", whole("reg_04"))
		all.Wait()
		synctest.Wait() // until the workers find that no request waits
		require.Zero(t, r.reads)
		require.Empty(t, r.waiting)
	})
}

func TestReader_EndOfAStreamDoesNotEndItsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{store: &shelf{}}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for _, region := range []string{"reg_1", "reg_2", "reg_3"} {
			all.Go(func() {
				_, err := r.readItems(ctx, region, deploymentKeys("a"))
				require.ErrorIs(t, err, context.Canceled)
			})
		}
		synctest.Wait()
		all.Go(func() {
			rows, err := r.readItems(t.Context(), "reg_4", deploymentKeys("a"))
			require.NoError(t, err)
			require.Len(t, rows, 1)
		})
		synctest.Wait()
		cancel()
		all.Wait()
	})
}
