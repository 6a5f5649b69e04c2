package memory

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

func (t *tx) GetHead(regionID string) (model.Head, error) {
	h, ok := headTable.overlayIn(t).get(regionID)
	return oneRow(h.Head, ok, "head of region", regionID)
}

func (t *tx) GetHeads(regionIDs []string) ([]model.Head, error) {
	var heads []model.Head
	for _, id := range sortDistinct(regionIDs) {
		if h, ok := headTable.overlayIn(t).get(id); ok {
			heads = append(heads, h.Head)
		}
	}
	return heads, nil
}

func (t *tx) SumHeads() (model.HeadSum, error) {
	var sum model.HeadSum
	for _, h := range headTable.overlayIn(t).list(func(head) bool { return true }) {
		sum = sum.With(h.Head)
	}
	return sum, nil
}

func (t *tx) ListRegionHeads(after string, limit int) ([]model.Head, error) {
	var heads []model.Head
	for _, h := range headTable.overlayIn(t).list(func(h head) bool { return h.RegionID > after }) {
		heads = append(heads, h.Head)
	}
	slices.SortFunc(heads, func(a, b model.Head) int { return cmp.Compare(a.RegionID, b.RegionID) })
	return firstRows(heads, limit), nil
}

// indexFrom returns the index at which the changes above a revision begin.
func (l log) indexFrom(revision int64) int {
	i, _ := slices.BinarySearchFunc(l, revision+1, func(c model.Change, r int64) int { return cmp.Compare(c.Revision, r) })
	return i
}

func (t *tx) Changes(after map[string]int64, limit int) ([]model.Change, error) {
	var changes []model.Change
	for _, region := range slices.Sorted(maps.Keys(after)) {
		feed, _ := logTable.overlayIn(t).get(region)
		for _, c := range feed.changes[feed.changes.indexFrom(after[region]):] {
			if len(changes) >= limit {
				return changes, nil
			}
			c.Chain = bytes.Clone(c.Chain)
			changes = append(changes, c)
		}
	}
	return changes, nil
}

// ChainAt reads the head first. The head has the chain values of its revision and of the revision at which its epoch
// began, even if the change of that revision was compacted or belongs to the previous epoch.
func (t *tx) ChainAt(regionID string, revision int64) ([]byte, error) {
	h, ok := headTable.overlayIn(t).get(regionID)
	if !ok {
		return nil, notFound("head of region", regionID)
	}
	switch revision {
	case h.Revision:
		return h.Chain, nil
	case h.baseRevision:
		return h.baseChain, nil
	case 0:
		return changefeed.Genesis(), nil
	}
	feed, _ := logTable.overlayIn(t).get(regionID)
	if i := feed.changes.indexFrom(revision - 1); i < len(feed.changes) && feed.changes[i].Revision == revision {
		return bytes.Clone(feed.changes[i].Chain), nil
	}
	return nil, notFound("chain value in region "+regionID+" of revision", revision)
}

func (t *tx) BumpEpoch(regionID string, salt []byte) (model.Head, error) {
	h, ok, err := headTable.overlayIn(t).lock(regionID)
	if err != nil {
		return model.Head{}, err
	}
	if !ok {
		return model.Head{}, notFound("head of region", regionID)
	}
	h.Epoch++
	h.Chain = changefeed.Restart(h.Epoch, salt)
	h.baseRevision, h.baseChain = h.Revision, h.Chain
	t.bumped[regionID] = true
	return headTable.copy(h).Head, headTable.overlayIn(t).put(h)
}

func (t *tx) CompactChanges(regionID string, upto int64, limit int) (int, error) {
	feed, ok, err := logTable.overlayIn(t).lock(regionID)
	if err != nil || !ok {
		return 0, err
	}
	gone := len(firstRows(feed.changes[:feed.changes.indexFrom(upto)], limit))
	if gone == 0 {
		return 0, nil
	}
	feed.changes = feed.changes[gone:]
	return gone, logTable.overlayIn(t).put(feed)
}
