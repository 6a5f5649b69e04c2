package mysql

import (
	"fmt"
	"maps"
	"slices"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/db/gen"
	"github.com/windlass-run/windlass/pkg/ident"
)

// changes has a transaction's changes by region, with the regions in the order of their first changes.
type changes struct {
	byRegion map[string][]model.Change
	at       map[changeKey]int
}

type changeKey struct {
	region string
	kind   model.ChangeKind
	key    string
}

// Change implements store.TopologyTx. It only records the change, which Update writes at its end. View and Snapshot fail
// at their end if there are changes.
func (t *tx) Change(regionID string, kind model.ChangeKind, key string, generation int64) {
	t.bindMember()
	c := &t.changes
	if c.byRegion == nil {
		c.byRegion, c.at = map[string][]model.Change{}, map[changeKey]int{}
	}
	k := changeKey{regionID, kind, key}
	if i, ok := c.at[k]; ok {
		c.byRegion[regionID][i].Generation = generation
		return
	}
	c.at[k] = len(c.byRegion[regionID])
	c.byRegion[regionID] = append(c.byRegion[regionID], model.Change{
		RegionID: regionID, Kind: kind, Key: key, Generation: generation,
	})
}

var (
	moveHeads = insertInto("MoveHeads", "region_heads",
		"region", "epoch", "revision", "chain", "base_revision", "base_chain").replacingColumns("revision", "chain")
	insertChanges = insertInto("InsertChanges", "region_changes",
		"region", "revision", "kind", "change_key", "generation", "id", "chain")
)

// appendChanges is a transaction's last step. It locks the heads in key order, numbers the changes, and
// writes heads and changes. It returns the new revisions.
func (t *tx) appendChanges() (map[string]int64, error) {
	revisions := make(map[string]int64, len(t.changes.byRegion))
	regions := slices.Sorted(maps.Keys(t.changes.byRegion))
	if len(regions) == 0 {
		return revisions, nil
	}
	if len(regions) > store.MaxRegions {
		return nil, fmt.Errorf("store: changes in %d regions, at most %d: %w", len(regions), store.MaxRegions, model.ErrTooManyRegions)
	}
	heads, err := t.primary.LockHeads(t.ctx, regions)
	if err != nil {
		return nil, t.queryError(err, "lock head of region", regions[0])
	}
	known := make(map[string]bool, len(heads))
	for _, h := range heads {
		known[h.Region] = true
	}
	for _, r := range regions {
		if !known[r] {
			return nil, fmt.Errorf("store: change in region %q: %w", r, model.ErrNotFound)
		}
	}
	var rows []model.Change
	for i := range heads {
		h := &heads[i]
		for _, c := range t.changes.byRegion[h.Region] {
			h.Revision++
			c.ID = ident.New("chg")
			c.Revision, c.Chain = h.Revision, changefeed.Chain(h.Chain, c.ID)
			h.Chain = c.Chain
			rows = append(rows, c)
		}
		revisions[h.Region] = h.Revision
	}
	if err := runBulk(t, t.feed, moveHeads, heads, func(args []any, h gen.RegionHead) []any {
		return append(args, h.Region, h.Epoch, h.Revision, h.Chain, h.BaseRevision, h.BaseChain)
	}); err != nil {
		return nil, t.queryError(err, "move head of region", regions[0])
	}
	if err := runBulk(t, t.feed, insertChanges, rows, func(args []any, c model.Change) []any {
		return append(args, c.RegionID, c.Revision, int32(c.Kind), c.Key, c.Generation, c.ID, c.Chain)
	}); err != nil {
		return nil, t.queryError(err, "append changes of region", regions[0])
	}
	return revisions, nil
}

func headFromRow(r gen.RegionHead) (model.Head, error) {
	return model.Head{RegionID: r.Region, Epoch: r.Epoch, Revision: r.Revision, Chain: r.Chain}, nil
}

func (t *tx) GetHead(regionID string) (model.Head, error) {
	rows, err := t.readHeads([]string{regionID})
	if err != nil {
		return model.Head{}, t.queryError(err, "get head of region", regionID)
	}
	if len(rows) == 0 {
		return model.Head{}, wrapError(model.ErrNotFound, "get head of region", regionID)
	}
	return headFromRow(rows[0])
}

func (t *tx) GetHeads(regionIDs []string) ([]model.Head, error) {
	return list(t, "get heads", "", headFromRow)(t.readHeads(sortDistinct(regionIDs)))
}

// SumHeads reads the primary, as all reads of the feed do.
func (t *tx) SumHeads() (model.HeadSum, error) {
	row, err := t.primary.SumHeads(t.ctx)
	return model.HeadSum{Regions: row.Regions, Epochs: row.Epochs, Revisions: row.Revisions, Chains: row.Chains}, t.queryError(err, "sum up heads", "")
}

func (t *tx) ListRegionHeads(after string, n int) ([]model.Head, error) {
	return list(t, "list heads", "", headFromRow)(t.primary.ListHeads(t.ctx, gen.ListHeadsParams{After: after, Limit: limitOrAll(n)}))
}

// ChainAt reads the head first. The head has the chain values of its revision and of the revision at which its epoch
// began, even if the change of that revision was compacted or belongs to the previous epoch.
func (t *tx) ChainAt(regionID string, revision int64) ([]byte, error) {
	h, err := t.primary.GetHead(t.ctx, regionID)
	if err != nil {
		return nil, t.queryError(err, "get head of region", regionID)
	}
	switch revision {
	case h.Revision:
		return h.Chain, nil
	case h.BaseRevision:
		return h.BaseChain, nil
	case 0:
		return changefeed.Genesis(), nil
	}
	chain, err := t.primary.GetChain(t.ctx, gen.GetChainParams{Region: regionID, Revision: revision})
	return chain, t.queryError(err, fmt.Sprintf("get chain of revision %d of region", revision), regionID)
}

// BumpEpoch locks the head, so that earlier changes belong to the old epoch, and changes that wait for the lock to the
// new epoch.
func (t *tx) BumpEpoch(regionID string, salt []byte) (model.Head, error) {
	if err := t.requireUpdate("bump epoch of region", regionID); err != nil {
		return model.Head{}, err
	}
	heads, err := t.primary.LockHeads(t.ctx, []string{regionID})
	if err == nil && len(heads) == 0 {
		return model.Head{}, fmt.Errorf("store: bump epoch of region %q: %w", regionID, model.ErrNotFound)
	}
	if err != nil {
		return model.Head{}, t.queryError(err, "bump epoch of region", regionID)
	}
	h := heads[0]
	h.Epoch++
	h.Chain = changefeed.Restart(h.Epoch, salt)
	err = t.primary.SetEpoch(t.ctx, gen.SetEpochParams{Epoch: h.Epoch, Chain: h.Chain, BaseChain: h.Chain, Region: regionID})
	if err != nil {
		return model.Head{}, t.queryError(err, "bump epoch of region", regionID)
	}
	t.bumped[regionID] = h.Revision
	return headFromRow(h)
}

func (t *tx) CompactChanges(regionID string, upto int64, n int) (int, error) {
	gone, err := t.primary.CompactChanges(t.ctx, gen.CompactChangesParams{Region: regionID, Revision: upto, Limit: limitOrAll(n)})
	return int(gone), t.queryError(err, "compact changes of region", regionID)
}
