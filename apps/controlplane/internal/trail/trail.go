// Package trail writes calls that change nothing into the audit: refused calls, and reads of secrets, logs and
// credentials.
//
// Such calls may come in floods, so they are not written one by one. Equal calls of a minute are one
// row with a count. A process keeps a bounded number of rows for a minute, and counts further calls
// without their address and resource. A process that dies loses the calls of one minute.
package trail

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
)

// Done is the outcome of a call that succeeded.
const Done = "done"

// Elsewhere stands for the address of calls that are counted without their addresses.
const Elsewhere = "many addresses"

const (
	// every is how long equal calls are counted together.
	every = time.Minute
	// maxRows bounds the rows of a process in a minute.
	maxRows = 1_000
	// writeTimeout bounds the transaction that writes the rows.
	writeTimeout = 20 * time.Second
)

// Entry is one call. Calls with equal entries are counted together.
type Entry struct {
	// WorkspaceID is the workspace whose audit gets the row. Empty: the platform's audit.
	WorkspaceID    string
	Actor, ActorID string
	Source         string
	Procedure      string
	// ResourceKind and ResourceID name the object that was read.
	ResourceKind, ResourceID string
	// Outcome is Done, or why the call was refused.
	Outcome string
}

// Tx is the part of a transaction that Trail needs.
type Tx interface {
	InsertAudit(rows ...model.Audit) error
}

// Store runs transactions.
type Store interface {
	Update(ctx context.Context, fn func(Tx) error) error
}

// Trail counts calls and writes them. It is safe for concurrent use. A nil Trail writes nothing.
type Trail struct {
	store   Store
	log     *slog.Logger
	dropped prometheus.Counter
	most    int

	mu     sync.Mutex
	counts map[Entry]*count
}

type count struct {
	calls       int64
	first, last int64 // unix ms
}

// New makes a Trail. Its Run must run, because it writes the counted calls.
func New(store Store, log *slog.Logger, registerer prometheus.Registerer) (*Trail, error) {
	dropped, err := registerDropped(registerer)
	if err != nil {
		return nil, fmt.Errorf("trail: register metrics: %w", err)
	}
	return &Trail{store: store, log: log, most: maxRows, counts: map[Entry]*count{}, dropped: dropped}, nil
}

// Note counts a call at unix ms. It does not block.
func (t *Trail) Note(e Entry, at int64) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.counts[e]; c != nil {
		c.calls, c.last = c.calls+1, at
		return
	}
	if len(t.counts) >= t.most {
		e.Source, e.ResourceID, e.Actor, e.ActorID = Elsewhere, "", "", ""
	}
	switch c := t.counts[e]; {
	case c != nil:
		c.calls, c.last = c.calls+1, at
	case len(t.counts) < 2*t.most:
		t.counts[e] = &count{calls: 1, first: at, last: at}
	default:
		t.dropped.Inc()
	}
}

// Run writes the counted calls each minute, and when ctx ends.
func (t *Trail) Run(ctx context.Context) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			t.write(context.WithoutCancel(ctx))
			return nil
		case <-ticker.C:
			t.write(ctx)
		}
	}
}

func (t *Trail) write(ctx context.Context) {
	t.mu.Lock()
	counts := t.counts
	t.counts = map[Entry]*count{}
	t.mu.Unlock()
	if len(counts) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	rows := make([]model.Audit, 0, len(counts))
	for e, c := range counts {
		rows = append(rows, rowOf(e, c))
	}
	err := t.store.Update(ctx, func(tx Tx) error { return tx.InsertAudit(rows...) })
	if err == nil {
		return
	}
	for _, c := range counts {
		t.dropped.Add(float64(c.calls))
	}
	t.log.WarnContext(ctx, "cannot write refused calls and reads into the audit", "rows", len(counts), "error", err)
}

func rowOf(e Entry, c *count) model.Audit {
	after, err := json.Marshal(struct {
		Outcome string `json:"outcome"`
		Count   int64  `json:"count"`
		Until   int64  `json:"until"`
	}{e.Outcome, c.calls, c.last})
	if err != nil {
		after = nil // strings and numbers always encode
	}
	return model.Audit{
		ID: ident.New("aud"), WorkspaceID: e.WorkspaceID, At: c.first, Actor: e.Actor, ActorID: e.ActorID, Source: e.Source,
		Procedure: e.Procedure, ResourceKind: e.ResourceKind, ResourceID: e.ResourceID, After: string(after),
	}
}
