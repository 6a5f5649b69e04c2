package inbox

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// storage stores the content of an inbox.
type storage interface {
	// load calls item with every stored item. It returns the cursor. synced is true if a whole
	// snapshot was ever stored.
	load(item func(*agentv1.Item)) (at Cursor, synced bool, err error)
	// encode makes the row of an item. It is safe for concurrent use.
	encode(item *agentv1.Item) ([]byte, error)
	// commit stores all of its arguments, or nothing. fresh is sorted by inRows.
	commit(fresh []entry, gone []Key, next Cursor, snapshot bool) error
	// abandonWrites stops all later writes; see Inbox.Abandon.
	abandonWrites()
	Close() error
}

var (
	bucketMeta   = []byte("meta")
	bucketItems  = []byte("items")
	keyEpoch     = []byte("epoch")
	keyRevision  = []byte("revision")
	keyChain     = []byte("chain")
	keySnapshots = []byte("snapshots")
)

// file is a storage on disk.
type file struct {
	*bbolt.DB
	descriptor int // the file descriptor that the database writes to

	mu                sync.Mutex
	abandoned, closed bool
}

// abandonWrites replaces the database's descriptor by one that cannot be written to. So the next write
// fails, at any point of a transaction. Reads still work, because the database reads from its
// memory mapping. Closing the descriptor would be wrong, because another file could get its number.
func (f *file) abandonWrites() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	nothing, err := os.Open(os.DevNull)
	if err == nil {
		err = errors.Join(duplicateDescriptor(int(nothing.Fd()), f.descriptor), nothing.Close())
	}
	if err != nil {
		panic(fmt.Sprintf("abandon an inbox: %v", err)) // the database could still write to the file
	}
	f.abandoned = true
}

// Close returns no error for an abandoned file, because the database cannot close such a file
// properly. The file's lock ends when the mapping is removed.
func (f *file) Close() error {
	err := f.DB.Close() // waits until the present frame is stored
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed = true; f.abandoned {
		return nil
	}
	return err
}

func (f *file) load(each func(*agentv1.Item)) (at Cursor, synced bool, err error) {
	err = f.Update(func(tx *bbolt.Tx) error {
		meta, err := tx.CreateBucketIfNotExists(bucketMeta)
		if err != nil {
			return err
		}
		items, err := tx.CreateBucketIfNotExists(bucketItems)
		if err != nil {
			return err
		}
		at = Cursor{
			Epoch:    readInt(meta.Get(keyEpoch)),
			Revision: readInt(meta.Get(keyRevision)),
			Chain:    append([]byte(nil), meta.Get(keyChain)...),
		}
		synced = readInt(meta.Get(keySnapshots)) > 0
		return items.ForEach(func(k, v []byte) error {
			item := &agentv1.Item{}
			if err := proto.Unmarshal(v, item); err != nil {
				return fmt.Errorf("item %q: %w", k, err)
			}
			each(item)
			return nil
		})
	})
	return at, synced, err
}

func (f *file) encode(item *agentv1.Item) ([]byte, error) { return proto.Marshal(item) }

func (f *file) commit(fresh []entry, gone []Key, next Cursor, snapshot bool) error {
	return f.Update(func(tx *bbolt.Tx) error {
		stored := tx.Bucket(bucketItems)
		// The rows are in the order of the file. The database keeps a page as one array until the
		// commit, so a row that is not added at the end of the page moves all rows after it.
		for i := range fresh {
			if err := stored.Put(rowKey(fresh[i].key), fresh[i].row); err != nil {
				return err
			}
		}
		for _, k := range gone {
			if err := stored.Delete(rowKey(k)); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		if snapshot {
			if err := meta.Put(keySnapshots, writeInt(1)); err != nil {
				return err
			}
		}
		return errors.Join(
			meta.Put(keyEpoch, writeInt(next.Epoch)),
			meta.Put(keyRevision, writeInt(next.Revision)),
			meta.Put(keyChain, next.Chain))
	})
}

// inRows compares keys in the order of rowKey.
func inRows(a, b Key) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) }

func rowKey(k Key) []byte { return append([]byte{byte(k.Kind)}, k.Name...) }

func readInt(b []byte) int64 {
	if len(b) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(b))
}

func writeInt(v int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }

// Memory is a storage for agents without a disk, in virtual time. It outlives the inboxes that open
// it. Only one inbox may have it open at a time.
type Memory struct {
	mu     sync.Mutex
	open   bool
	at     Cursor
	synced bool
	items  map[Key]*agentv1.Item
}

// NewMemory returns an empty Memory.
func NewMemory() *Memory { return &Memory{items: map[Key]*agentv1.Item{}} }

// Clone returns a copy that no inbox has open.
func (m *Memory) Clone() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &Memory{at: m.at, synced: m.synced, items: maps.Clone(m.items)} // items never change
}

// opened is a Memory that one inbox has open.
type opened struct {
	*Memory
	abandoned bool // guarded by mu
}

func (m *opened) load(each func(*agentv1.Item)) (Cursor, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open {
		return Cursor{}, false, errors.New("open inbox: another agent is running on it")
	}
	m.open = true
	for _, item := range m.items {
		each(item)
	}
	return m.at, m.synced, nil
}

func (m *opened) encode(*agentv1.Item) ([]byte, error) { return nil, nil }

func (m *opened) commit(fresh []entry, gone []Key, next Cursor, snapshot bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.abandoned {
		return errors.New("the inbox was abandoned")
	}
	for _, e := range fresh {
		m.items[e.key] = e.item
	}
	for _, k := range gone {
		delete(m.items, k)
	}
	m.at, m.synced = next, m.synced || snapshot
	return nil
}

func (m *opened) abandonWrites() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.abandoned = true
}

// Close lets another inbox open the Memory.
func (m *opened) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open = false
	return nil
}
