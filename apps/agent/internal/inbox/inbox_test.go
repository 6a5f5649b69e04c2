package inbox

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func apply(key string, epoch, generation int64) *agentv1.Item {
	return &agentv1.Item{
		Kind: agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, Key: key, Epoch: epoch, Generation: generation, SpecHash: []byte{byte(generation)},
		Content: &agentv1.Item_Deployment{Deployment: &agentv1.DeploymentState{Action: agentv1.DeploymentState_ACTION_APPLY, Deployment: &agentv1.Deployment{Id: key}}},
	}
}

func tombstone(key string, epoch, generation int64) *agentv1.Item {
	it := apply(key, epoch, generation)
	it.GetDeployment().Action = agentv1.DeploymentState_ACTION_DELETE
	return it
}

func begin(epoch, revision int64, count int) *agentv1.SnapshotBegin {
	return &agentv1.SnapshotBegin{Epoch: epoch, Revision: revision, Chain: []byte("chain"), Count: int64(count)}
}

func deployment(key string) Key { return Key{agentv1.ItemKind_ITEM_KIND_DEPLOYMENT, key} }

func open(t *testing.T, path string) *Inbox {
	t.Helper()
	in, err := Open(path, false)
	require.NoError(t, err)
	return in
}

func TestInbox_RestartFindsItemsAndCursor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inbox.db")
	in := open(t, path)
	require.False(t, in.Synced())
	_, err := in.Snapshot(begin(1, 5, 2), []*agentv1.Item{apply("a", 1, 1), apply("b", 1, 2)})
	require.NoError(t, err)
	_, err = in.Delta(&agentv1.Delta{Epoch: 1, After: 5, Upto: 7, Chain: []byte("seven"), Items: []*agentv1.Item{tombstone("b", 1, 3)}})
	require.NoError(t, err)
	sums := in.Sums()
	require.NoError(t, in.Close())

	in = open(t, path)
	defer in.Close()
	require.Equal(t, Cursor{Epoch: 1, Revision: 7, Chain: []byte("seven")}, in.Cursor())
	require.True(t, in.Synced())
	require.Equal(t, sums, in.Sums())
	item, ok := in.Get(deployment("b"))
	require.True(t, ok)
	require.True(t, IsDelete(item))
}

func TestGeneration_LowerLosesAndLaterEpochWins(t *testing.T) {
	in := open(t, filepath.Join(t.TempDir(), "inbox.db"))
	defer in.Close()
	_, err := in.Snapshot(begin(1, 1, 1), []*agentv1.Item{apply("a", 1, 9)})
	require.NoError(t, err)

	changed, err := in.Delta(&agentv1.Delta{Epoch: 1, After: 1, Upto: 2, Items: []*agentv1.Item{apply("a", 1, 8)}})
	require.NoError(t, err)
	require.Empty(t, changed)

	changed, err = in.Snapshot(begin(2, 1, 1), []*agentv1.Item{apply("a", 2, 3)})
	require.NoError(t, err)
	require.Equal(t, []Key{deployment("a")}, changed)
	item, _ := in.Get(deployment("a"))
	require.Equal(t, int64(3), item.Generation)
}

func TestDelta_NotAtTheCursorChangesNothing(t *testing.T) {
	in := open(t, filepath.Join(t.TempDir(), "inbox.db"))
	defer in.Close()
	_, err := in.Snapshot(begin(1, 5, 0), nil)
	require.NoError(t, err)
	for name, d := range map[string]*agentv1.Delta{
		"a hole":        {Epoch: 1, After: 6, Upto: 7},
		"a repetition":  {Epoch: 1, After: 4, Upto: 6},
		"another epoch": {Epoch: 2, After: 5, Upto: 6},
	} {
		d.Items = []*agentv1.Item{apply("a", d.Epoch, 1)}
		_, err := in.Delta(d)
		require.ErrorIs(t, err, ErrGap, name)
		require.Empty(t, in.Items(), name)
		require.Equal(t, int64(5), in.Cursor().Revision, name)
	}
}

func TestSnapshot_ForgetsOnlyItsScope(t *testing.T) {
	in := open(t, filepath.Join(t.TempDir(), "inbox.db"))
	defer in.Close()
	_, err := in.Snapshot(begin(1, 5, 3), []*agentv1.Item{apply("a", 1, 1), apply("b", 1, 1), apply("c", 1, 1)})
	require.NoError(t, err)

	repair := begin(1, 5, 0)
	sums := in.Sums()
	for i, v := range sums {
		if v != 0 {
			repair.Buckets = []int32{int32(i)} // the last non-empty bucket
		}
	}
	changed, err := in.Snapshot(repair, nil)
	require.NoError(t, err)
	require.Len(t, changed, 1)
	require.Len(t, in.Items(), 2)

	changed, err = in.Snapshot(begin(1, 6, 0), nil)
	require.NoError(t, err)
	require.Len(t, changed, 2)
	require.Empty(t, in.Items())
}

func TestHeldSince(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inbox.db")
	in := open(t, path)
	since := func(key string) int64 {
		frame, ok := in.HeldSince(deployment(key))
		require.True(t, ok)
		return frame
	}
	_, err := in.Snapshot(begin(1, 5, 1), []*agentv1.Item{apply("a", 1, 1)})
	require.NoError(t, err)
	first := since("a")
	_, ok := in.HeldSince(deployment("b"))
	require.False(t, ok)

	_, err = in.Delta(&agentv1.Delta{Epoch: 1, After: 5, Upto: 7, Items: []*agentv1.Item{apply("a", 1, 2), apply("b", 1, 1)}})
	require.NoError(t, err)
	_, err = in.Snapshot(begin(2, 3, 1), []*agentv1.Item{apply("a", 2, 1)})
	require.NoError(t, err)
	require.Equal(t, first, since("a"), "a newer item and a snapshot with the key keep the number")
	_, ok = in.HeldSince(deployment("b"))
	require.False(t, ok)

	_, err = in.Snapshot(begin(2, 4, 0), nil)
	require.NoError(t, err)
	_, err = in.Delta(&agentv1.Delta{Epoch: 2, After: 4, Upto: 5, Items: []*agentv1.Item{apply("a", 2, 1)}})
	require.NoError(t, err)
	require.Greater(t, since("a"), first)
	require.NoError(t, in.Close())

	in = open(t, path)
	defer in.Close()
	require.Zero(t, since("a"), "the key was held before the start")
}

func TestSnapshot_TornLeavesTheInboxAsItWas(t *testing.T) {
	in := open(t, filepath.Join(t.TempDir(), "inbox.db"))
	defer in.Close()
	_, err := in.Snapshot(begin(1, 5, 2), []*agentv1.Item{apply("a", 1, 1)})
	require.ErrorIs(t, err, ErrGap)
	require.Empty(t, in.Items())
	require.False(t, in.Synced())
}

func TestFrame_KeepsTheNewestOfAKeyNamedTwice(t *testing.T) {
	in := open(t, filepath.Join(t.TempDir(), "inbox.db"))
	defer in.Close()
	changed, err := in.Snapshot(begin(1, 5, 2), []*agentv1.Item{apply("a", 1, 2), apply("a", 1, 1)})
	require.NoError(t, err)
	require.Len(t, changed, 1)
	item, _ := in.Get(deployment("a"))
	require.EqualValues(t, 2, item.Generation)
}

func TestSnapshot_IsNotHeldBeforeItsEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inbox.db")
	in := open(t, path)
	st := in.Stage(begin(1, 5, 201))
	var first []*agentv1.Item
	for n := range 200 {
		first = append(first, apply(fmt.Sprintf("a%03d", n), 1, 1))
	}
	st.Add(first)
	require.NoError(t, in.Close())
	in = open(t, path)
	require.Empty(t, in.Items())
	require.False(t, in.Synced())

	st = in.Stage(begin(1, 5, 201))
	st.Add(first)
	st.Add([]*agentv1.Item{apply("a000", 1, 2)})
	changed, err := st.Commit(201)
	require.NoError(t, err)
	require.Len(t, changed, 200)
	sums := in.Sums()
	require.NoError(t, in.Close())
	in = open(t, path)
	defer in.Close()
	require.Len(t, in.Items(), 200)
	require.Equal(t, sums, in.Sums(), "the file has the items that were held")
	item, _ := in.Get(deployment("a000"))
	require.EqualValues(t, 2, item.Generation)
}

func TestSnapshot_WithAnUnstorableItemFailsWhole(t *testing.T) {
	in := open(t, filepath.Join(t.TempDir(), "inbox.db"))
	defer in.Close()
	items := []*agentv1.Item{apply(strings.Repeat("a", maxKey+1), 1, 1)}
	for n := range minConcurrent {
		items = append(items, apply(fmt.Sprintf("a%03d", n), 1, 1))
	}
	_, err := in.Snapshot(begin(1, 5, len(items)), items)
	require.ErrorContains(t, err, "1025 bytes")
	require.Empty(t, in.Items())
}

func TestSnapshot_OfAnotherEpochOrRevisionIsRefused(t *testing.T) {
	in := open(t, filepath.Join(t.TempDir(), "inbox.db"))
	defer in.Close()
	_, err := in.Snapshot(begin(2, 5, 1), []*agentv1.Item{apply("a", 2, 1)})
	require.NoError(t, err)
	_, err = in.Snapshot(begin(1, 9, 0), nil)
	require.ErrorIs(t, err, ErrGap, "an older epoch")
	part := begin(2, 7, 0)
	part.Buckets = []int32{1}
	_, err = in.Snapshot(part, nil)
	require.ErrorIs(t, err, ErrGap, "some buckets, at a later revision than the other buckets")
	require.Len(t, in.Items(), 1)
}

func TestTombstones_AreCountedAndForgotten(t *testing.T) {
	in := open(t, filepath.Join(t.TempDir(), "inbox.db"))
	defer in.Close()
	var items []*agentv1.Item
	for i := range maxTombstones + 1 {
		items = append(items, tombstone("gone_"+strconv.Itoa(i), 1, 1))
	}
	_, err := in.Snapshot(begin(1, 5, len(items)), items)
	require.NoError(t, err)
	require.True(t, in.Stale())
	all := begin(1, 5, 0)
	for i := range int32(256) {
		all.Buckets = append(all.Buckets, i)
	}
	_, err = in.Snapshot(all, nil)
	require.NoError(t, err)
	require.False(t, in.Stale())
	require.Empty(t, in.Items())
}

// A frame is stored in several writes. The kill comes before, between and after these writes.
func TestInbox_KilledHoldsOneFrameWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "inbox.db")
	at := int64(0)
	for round := range 24 {
		in := open(t, path)
		require.GreaterOrEqual(t, in.Cursor().Revision, at, "stored frames stay")
		require.LessOrEqual(t, in.Cursor().Revision, at+1, "at most one more frame: the one that was being stored")
		at = in.Cursor().Revision
		require.Len(t, in.Items(), int(at), "items and cursor match")
		held := make(chan struct{})
		var once sync.Once
		var ended sync.WaitGroup
		ended.Go(func() {
			for n := 0; ; n++ {
				if n == round%8 {
					once.Do(func() { close(held) })
				}
				item := apply(fmt.Sprintf("a%06d", at+1), 1, 1)
				item.GetDeployment().Deployment.Spec = &windlassv1.DeploymentSpec{Image: strings.Repeat("x", 20_000)}
				if _, err := in.Delta(&agentv1.Delta{Epoch: 0, After: at, Upto: at + 1, Items: []*agentv1.Item{item}}); err != nil {
					once.Do(func() { close(held) })
					return
				}
				at++
			}
		})
		<-held
		in.Abandon()
		ended.Wait()
		require.NoError(t, in.Close())
	}
	require.Positive(t, at)
}

func TestInbox_AbandonedStoresNothingInMemory(t *testing.T) {
	m := NewMemory()
	in, err := OpenMemory(m)
	require.NoError(t, err)
	_, err = in.Snapshot(begin(1, 5, 1), []*agentv1.Item{apply("a", 1, 1)})
	require.NoError(t, err)
	in.Abandon()
	_, err = in.Delta(&agentv1.Delta{Epoch: 1, After: 5, Upto: 6, Items: []*agentv1.Item{apply("b", 1, 1)}})
	require.Error(t, err)
	require.NoError(t, in.Close())
	in, err = OpenMemory(m)
	require.NoError(t, err)
	require.EqualValues(t, 5, in.Cursor().Revision)
	require.Len(t, in.Items(), 1)
}
