package dispatch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/windlass-run/windlass/apps/controlplane/internal/changefeed"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/digest"
)

// pageItems is the number of items per page. It is large, so that the cost per query is small, and small enough that
// sending begins soon.
const pageItems = 1000

// reading is a running consistent read of a region's whole desired state. Pages are read, encoded and taken
// concurrently. The reading keeps pages that are not taken yet, so that its transaction never waits for a slow
// connection.
type reading struct {
	// at is known once begun is closed.
	at     changefeed.Position
	cancel context.CancelFunc
	begun  chan struct{}
	done   chan struct{}
	more   chan struct{} // signals a new page or the end, buffer of one

	mu    sync.Mutex
	pages [][]wired
	ended bool
	err   error

	// index has all items after nextPage has returned the end.
	index *digest.Index
}

// startReading starts a reading in the background. The caller must stop it.
func (st *stream) startReading(ctx context.Context) *reading {
	ctx, cancel := context.WithCancel(ctx)
	r := &reading{cancel: cancel, begun: make(chan struct{}), done: make(chan struct{}), more: make(chan struct{}, 1), index: digest.NewIndex()}
	go func() {
		defer close(r.done)
		if err := st.svc.limiter.Wait(ctx); err != nil {
			r.putPage(nil, true, fmt.Errorf("wait for the limit on snapshots: %w", err))
			return
		}
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		st.readPages(ctx, r)
	}()
	return r
}

// beginReading begins a reading and waits until its position is known. The position must be in the stream's epoch,
// and not before the subscription's position. If st.early fits, it is used.
func (st *stream) beginReading(ctx context.Context) (*reading, error) {
	if early := st.early; early != nil {
		st.early = nil
		if fits, err := early.canUse(st); fits && err == nil {
			return early, nil
		}
		early.stop()
	}
	r := st.startReading(ctx)
	if fits, err := r.canUse(st); err != nil || !fits {
		r.stop()
		return nil, cmp.Or(err, errDrift)
	}
	return r, nil
}

// canUse waits for the position of the reading, and reports whether the stream can use the reading.
func (r *reading) canUse(st *stream) (bool, error) {
	select {
	case <-r.begun:
	case <-r.done:
	}
	r.mu.Lock()
	err := r.err
	r.mu.Unlock()
	return err == nil && st.currentEpoch() == r.at.Epoch && r.at.Revision >= st.published.Revision, err
}

// readPages reads all pages in one transaction. The end is put after the last row was read. It does not wait for the
// commit, because a read-only transaction has no outcome.
func (st *stream) readPages(ctx context.Context, r *reading) {
	var work errgroup.Group
	rows := make(chan []model.DesiredItem, 1)
	work.Go(func() error {
		defer func() {
			for range rows { // the sender of rows must not block after an encoding failed
			}
		}()
		for page := range rows {
			items, err := encodeAll(page, r.at.Epoch, st.svc.cfg.sendingLimits())
			if err != nil {
				return err
			}
			for i := range items {
				updateIndex(r.index, &items[i])
			}
			r.putPage(items, false, nil)
		}
		return nil
	})
	encoded := sync.OnceValue(func() error {
		close(rows)
		return work.Wait()
	})
	complete := false
	err := st.svc.cfg.Store.Snapshot(ctx, func(tx Tx) error {
		head, err := tx.GetHead(st.region)
		if err != nil {
			return fmt.Errorf("read head: %w", err)
		}
		r.at = changefeed.Position{Epoch: head.Epoch, Revision: head.Revision, Chain: head.Chain}
		close(r.begun)
		err = tx.EachDesired(st.region, pageItems, func(page []model.DesiredItem) error {
			rows <- page
			return nil
		})
		if err == nil {
			err = encoded()
		}
		if complete = err == nil; complete {
			r.putPage(nil, true, nil)
		}
		return err
	})
	if !complete {
		r.putPage(nil, true, fmt.Errorf("read snapshot of region %s: %w", st.region, cmp.Or(err, encoded())))
	}
}

func (r *reading) putPage(page []wired, ended bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(page) > 0 {
		r.pages = append(r.pages, page)
	}
	r.ended, r.err = ended, err
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// nextPage returns the next page, nil at the end.
func (r *reading) nextPage(ctx context.Context) ([]wired, error) {
	for {
		r.mu.Lock()
		var page []wired
		ended, err := r.ended, r.err
		if len(r.pages) > 0 {
			page, r.pages[0] = r.pages[0], nil // sent pages are not kept
			r.pages = r.pages[1:]
		}
		r.mu.Unlock()
		switch {
		case err != nil:
			return nil, err
		case page != nil:
			return page, nil
		case ended:
			return nil, nil
		}
		select {
		case <-r.more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// remainingItems waits for the end, and returns all items that were not taken yet.
func (r *reading) remainingItems(ctx context.Context) ([]wired, error) {
	var all [][]wired
	for {
		page, err := r.nextPage(ctx)
		if page == nil || err != nil {
			return slices.Concat(all...), err
		}
		all = append(all, page)
	}
}

// waitEnd waits for the end of the reading, and drops its pages, for callers that only need the index.
func (r *reading) waitEnd(ctx context.Context) error {
	for {
		if page, err := r.nextPage(ctx); page == nil || err != nil {
			return err
		}
	}
}

// stop ends the reading. It may be called more than once.
func (r *reading) stop() {
	r.cancel()
	<-r.done
}
