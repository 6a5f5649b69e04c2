package dispatch

import (
	"context"
	"fmt"
	"sync"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

const (
	// maxReads is the maximum number of concurrent reads. While one read waits for the database, another can be
	// decoded.
	maxReads = 2
	// maxReadKeys is the maximum number of keys in one read. The first request of a read may exceed it.
	maxReadKeys = 5000
)

// reader reads items for all streams. Requests that arrive while maxReads reads are running are joined into one read.
// So a change of many regions needs few more queries than a change of one region, and the request of a single stream
// does not wait.
type reader struct {
	store Store

	mu      sync.Mutex
	waiting []*ask
	reads   int
}

// ask is the request of one stream, and its result.
type ask struct {
	region string
	keys   []changefeed.Key
	rows   []model.DesiredItem
	err    error
	done   chan struct{}
}

// readItems returns the newest state of the keys, ordered by kind and key.
func (r *reader) readItems(ctx context.Context, region string, keys []changefeed.Key) ([]model.DesiredItem, error) {
	a := &ask{region: region, keys: keys, done: make(chan struct{})}
	r.mu.Lock()
	r.waiting = append(r.waiting, a)
	if r.reads < maxReads {
		r.reads++
		// The worker also reads for other streams, so the end of this stream must not end it.
		go r.readBatches(context.WithoutCancel(ctx))
	}
	r.mu.Unlock()
	select {
	case <-a.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if a.err != nil {
		return nil, fmt.Errorf("read %d items of region %s: %w", len(keys), region, a.err)
	}
	return a.rows, nil
}

// readBatches reads batches until no request waits.
func (r *reader) readBatches(ctx context.Context) {
	for {
		batch := r.takeRequests()
		if len(batch) == 0 {
			return
		}
		err := r.readAll(ctx, batch)
		for _, a := range batch {
			// A row that cannot be decoded must only end the streams that need it, so each request is read again
			// alone.
			if a.err = err; err != nil && len(batch) > 1 {
				a.err = r.readAll(ctx, []*ask{a})
			}
			close(a.done)
		}
	}
}

// takeRequests returns the next requests: at least one, and at most one per region, because a stream and its
// replacement may both wait. If it returns none, the worker must end.
func (r *reader) takeRequests() []*ask {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, keys, regions := 0, 0, map[string]bool{}
	for _, a := range r.waiting {
		if keys += len(a.keys); regions[a.region] || n > 0 && keys > maxReadKeys {
			break
		}
		regions[a.region] = true
		n++
	}
	batch := r.waiting[:n:n]
	if r.waiting = r.waiting[n:]; n == 0 {
		r.waiting, r.reads = nil, r.reads-1
	}
	return batch
}

func (r *reader) readAll(ctx context.Context, batch []*ask) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	wanted := map[model.ChangeKind]map[string][]string{}
	byRegion := map[string]*ask{}
	for _, a := range batch {
		byRegion[a.region] = a
		for _, k := range a.keys {
			if wanted[k.Kind] == nil {
				wanted[k.Kind] = map[string][]string{}
			}
			wanted[k.Kind][a.region] = append(wanted[k.Kind][a.region], k.Name)
		}
	}
	return r.store.View(ctx, func(tx Tx) error {
		for _, a := range batch {
			a.rows = nil
		}
		for _, kind := range kinds {
			if len(wanted[kind]) == 0 {
				continue
			}
			rows, err := tx.DesiredItems(kind, wanted[kind])
			if err != nil {
				return err
			}
			for _, row := range rows {
				a := byRegion[row.RegionID]
				a.rows = append(a.rows, row)
			}
		}
		return nil
	})
}
