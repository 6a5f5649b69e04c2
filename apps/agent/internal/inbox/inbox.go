// Package inbox is the agent's durable copy of the region's desired state. It survives a restart of
// the agent, so the region keeps its desired state while the control plane is away.
//
// A frame and the cursor after it are stored in one transaction. So the cursor is never ahead of
// the items, and after a crash between two frames the control plane sends a frame again. The cursor
// means received, not applied. The reconciler reports which items were applied.
//
// An item with a lower (epoch, generation) than the held item is dropped. A complete snapshot
// replaces everything that it covers: the inbox forgets the keys that the snapshot leaves out.
// Workloads of such keys may still run. The agent finds them when it compares the runtime with the
// inbox (quarantine). No instance is stopped because a key is absent.
package inbox

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/windlass-run/windlass/pkg/digest"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// Cursor is the position at which a stream resumes: the inbox holds everything up to Revision.
type Cursor struct {
	Epoch    int64
	Revision int64
	Chain    []byte
}

// Key names an item.
type Key struct {
	Kind agentv1.ItemKind
	Name string
}

// ErrGap means that a frame does not continue the inbox. The caller must open the stream again.
var ErrGap = errors.New("the frame does not continue the inbox")

// mapped is the initial size of the file's memory mapping. If a file outgrows its mapping while a large
// snapshot is stored, every page of the snapshot is copied.
const mapped = 64 << 20

// maxKey is the maximum length of a key, in bytes. It is far above the length of all ids, and far
// below the limit of the file's format.
const maxKey = 1024

// Inbox holds items. It is safe for concurrent use. The items that it returns are shared, so
// callers must not change them.
type Inbox struct {
	kept storage

	mu     sync.RWMutex
	cursor Cursor
	items  map[Key]*agentv1.Item
	// naming has, by workload, the keys of the items that name it. since has the number of the
	// frame in which such an item came, or 0 if the item was held before the start. whole is the
	// number of the newest frame that was a whole snapshot, or 0 if there was none yet. asked has
	// the keys for which a new whole snapshot is needed.
	naming        map[string][]Key
	since         map[Key]int64
	frames, whole int64
	asked         map[Key]bool
	// arrived has, for each deployment that was not held before, the number of the frame in which it came.
	arrived map[Key]int64
	index   *digest.Index
	synced  bool
}

// Open opens or makes the inbox file. A file that cannot be read is an error, and Open does not
// replace it by an empty inbox. An operator may delete the file, which is safe.
//
// noSync leaves flushing to the operating system. A crash of the machine may then lose frames, which is
// acceptable in a test's fleet but not in a region.
func Open(path string, noSync bool) (*Inbox, error) {
	kept := &file{}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout: 5 * time.Second, NoSync: noSync, NoFreelistSync: true, InitialMmapSize: mapped,
		OpenFile: func(path string, flag int, mode os.FileMode) (f *os.File, err error) {
			if f, err = os.OpenFile(path, flag, mode); err == nil {
				kept.descriptor = int(f.Fd())
			}
			return f, err
		},
	})
	if err != nil {
		return nil, fmt.Errorf("open inbox %s (is another agent running on this data directory?): %w", path, err)
	}
	kept.DB = db
	in := newInbox(kept)
	if err := in.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("load inbox %s (deleting the file makes the agent ask for everything again): %w", path, err), db.Close())
	}
	return in, nil
}

// OpenMemory opens an inbox that is stored in m and not on disk.
func OpenMemory(m *Memory) (*Inbox, error) {
	in := newInbox(&opened{Memory: m})
	return in, in.load()
}

func newInbox(kept storage) *Inbox {
	return &Inbox{
		kept: kept, items: map[Key]*agentv1.Item{}, index: digest.NewIndex(),
		naming: map[string][]Key{}, since: map[Key]int64{}, asked: map[Key]bool{}, arrived: map[Key]int64{},
	}
}

func (in *Inbox) load() (err error) {
	in.cursor, in.synced, err = in.kept.load(func(item *agentv1.Item) { in.put(entryOf(item)) })
	return err
}

// Close waits until the present frame is stored, and closes the file. There is nothing to flush.
func (in *Inbox) Close() error { return in.kept.Close() }

// Abandon stops all writes to the file from this moment on, even in the middle of a frame. The file
// is then like the file of a process that was killed at this moment. Every later frame fails. The
// file stays locked until Close.
func (in *Inbox) Abandon() { in.kept.abandonWrites() }

// Cursor returns the position at which to resume.
func (in *Inbox) Cursor() Cursor {
	in.mu.RLock()
	defer in.mu.RUnlock()
	return in.cursor
}

// Synced reports whether a whole snapshot was ever stored. Before that, the absence of a key means
// nothing.
func (in *Inbox) Synced() bool {
	in.mu.RLock()
	defer in.mu.RUnlock()
	return in.synced
}

// Get returns the newest item of a key.
func (in *Inbox) Get(k Key) (*agentv1.Item, bool) {
	in.mu.RLock()
	defer in.mu.RUnlock()
	item, ok := in.items[k]
	return item, ok
}

// HeldSince returns the number of the frame that brought the key, if the key was held ever since.
// 0: the key was held before the start. ok is false if the key is not held.
func (in *Inbox) HeldSince(k Key) (frame int64, ok bool) {
	in.mu.RLock()
	defer in.mu.RUnlock()
	_, ok = in.items[k]
	return in.arrived[k], ok
}

// Items returns all held items, including tombstones, in no order.
func (in *Inbox) Items() []*agentv1.Item {
	in.mu.RLock()
	defer in.mu.RUnlock()
	out := make([]*agentv1.Item, 0, len(in.items))
	for _, item := range in.items {
		out = append(out, item)
	}
	return out
}

// maxTombstones is how many tombstones an inbox may hold, however many other items it holds.
const maxTombstones = 1000

// Stale reports whether a snapshot is needed, because Ask requested one or because most items are
// tombstones. Deltas only add tombstones. A snapshot leaves out tombstones that are not needed any
// more.
func (in *Inbox) Stale() bool {
	if in.Asked() {
		return true
	}
	in.mu.RLock()
	defer in.mu.RUnlock()
	live := in.index.Len()
	return len(in.items)-live > max(maxTombstones, live)
}

// Sums returns the digest of the items.
func (in *Inbox) Sums() digest.Sums {
	in.mu.RLock()
	defer in.mu.RUnlock()
	return in.index.Sums()
}

// Delta stores a delta frame and moves the cursor to its end. It returns the keys that changed. The
// error is ErrGap if the frame does not continue the cursor.
func (in *Inbox) Delta(d *agentv1.Delta) ([]Key, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if d.Epoch != in.cursor.Epoch || d.After != in.cursor.Revision || d.Upto < d.After {
		return nil, fmt.Errorf("%w: frame (%d, %d] of epoch %d, cursor %d of epoch %d",
			ErrGap, d.After, d.Upto, d.Epoch, in.cursor.Revision, in.cursor.Epoch)
	}
	next := in.cursor
	if d.Upto > d.After {
		next = Cursor{Epoch: d.Epoch, Revision: d.Upto, Chain: d.Chain}
	}
	st := in.Stage(nil)
	st.Add(d.Items)
	fresh, err := st.sortedEntries()
	if err != nil {
		return nil, fmt.Errorf("store delta in inbox: %w", err)
	}
	return in.commit(fresh, nil, next, false)
}

// Snapshot stores a complete snapshot. begin has the number of items. Snapshot returns the keys
// that changed or were removed.
func (in *Inbox) Snapshot(begin *agentv1.SnapshotBegin, items []*agentv1.Item) ([]Key, error) {
	st := in.Stage(begin)
	st.Add(items)
	return st.Commit(begin.Count)
}

// commit stores the items that are newer than the held ones, forgets the keys in gone, and moves
// the cursor. It changes the file first and then the memory. The caller holds in.mu.
func (in *Inbox) commit(fresh []entry, gone []Key, next Cursor, snapshot bool) ([]Key, error) {
	fresh = slices.DeleteFunc(fresh, func(e entry) bool {
		held, ok := in.items[e.key]
		return ok && !isNewer(e.item, held)
	})
	if err := in.kept.commit(fresh, gone, next, snapshot); err != nil {
		return nil, fmt.Errorf("store frame in inbox: %w", err)
	}
	in.frames++
	if len(in.items) == 0 {
		in.items = make(map[Key]*agentv1.Item, len(fresh))
	}
	changed := make([]Key, 0, len(fresh)+len(gone))
	for i := range fresh {
		if k := fresh[i].key; k.Kind == agentv1.ItemKind_ITEM_KIND_DEPLOYMENT && in.items[k] == nil {
			in.arrived[k] = in.frames
		}
		in.put(fresh[i])
		changed = append(changed, fresh[i].key)
	}
	for _, k := range gone {
		in.forgetName(k)
		delete(in.items, k)
		delete(in.arrived, k)
		in.index.Delete(int32(k.Kind), k.Name)
	}
	// The reconciler works on the keys in this order.
	changed = append(changed, gone...)
	slices.SortFunc(changed, inRows)
	in.cursor = next
	in.synced = in.synced || snapshot
	return changed, nil
}

// put stores an item in memory.
func (in *Inbox) put(e entry) {
	in.forgetName(e.key)
	in.items[e.key] = e.item
	in.nameWorkload(e.key, e.item)
	if countsInDigest(e.item) {
		in.index.Put(int32(e.key.Kind), e.key.Name, e.sum)
	} else {
		in.index.Delete(int32(e.key.Kind), e.key.Name)
	}
}

// isNewer reports whether item replaces held. An item with a lower (epoch, generation) does not, and
// an equal item does not.
func isNewer(item, held *agentv1.Item) bool {
	if item.Epoch != held.Epoch {
		return item.Epoch > held.Epoch
	}
	if item.Generation != held.Generation {
		return item.Generation > held.Generation
	}
	return string(item.SpecHash) != string(held.SpecHash)
}

// IsDelete reports whether the item is a tombstone.
func IsDelete(item *agentv1.Item) bool {
	d := item.GetDeployment()
	return d != nil && d.Action == agentv1.DeploymentState_ACTION_DELETE
}

// countsInDigest reports whether an item is part of the digest (see Bookmark).
func countsInDigest(item *agentv1.Item) bool {
	switch c := item.Content.(type) {
	case *agentv1.Item_Deployment:
		return c.Deployment.Action == agentv1.DeploymentState_ACTION_APPLY
	case *agentv1.Item_Routes:
		return len(c.Routes.Targets) > 0
	}
	return false
}

func keyOf(item *agentv1.Item) Key { return Key{item.Kind, item.Key} }
