package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// SweeperConfig configures a Sweeper.
type SweeperConfig struct {
	Store      SweepStore
	Log        *slog.Logger
	Registerer prometheus.Registerer

	// Interval is the average time between sweeps, with a jitter of half of it. A wake-up may be late by as
	// much. 0: 3 s.
	Interval time.Duration
	// Grace is how old a wake-up is before it counts as lost. 0: 5 s, far longer than a step usually takes to
	// arrive.
	Grace time.Duration
	// Resend is how long a swept app is not sent again. 0: 30 s, so that a driver with a backlog does not get
	// the same apps again and again.
	Resend time.Duration
}

// SweepTx has the queries of a Sweeper.
type SweepTx interface {
	// DueWakes returns rows that are due by the database's clock and must be sent. Their step was never sent, or
	// was sent when they were written and is lost, or was sent too long ago. Times are in ms.
	DueWakes(lostAfter, againAfter int64, limit int) ([]model.Wake, error)
	// MarkWakesSent marks the wake-ups that were due by then as sent.
	MarkWakesSent(appIDs []string, dueBy int64) error
	// UnsendWakes marks every row that was sent as never sent.
	UnsendWakes() (int64, error)
}

// SweepStore runs transactions.
type SweepStore interface {
	Update(ctx context.Context, fn func(SweepTx) error) error
	View(ctx context.Context, fn func(SweepTx) error) error
}

// Sweeper is the clock of all workflows, and the fallback of every Driver: it sends due wake-ups, and overdue
// ones that were lost. It runs one query each interval in each process, however many apps wait.
type Sweeper struct {
	cfg   SweeperConfig
	swept prometheus.Counter
}

// NewSweeper checks cfg.
func NewSweeper(cfg SweeperConfig) (*Sweeper, error) {
	if cfg.Store == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("rollout: the sweeper's Store, Log and Registerer are required")
	}
	for d, def := range map[*time.Duration]time.Duration{
		&cfg.Interval: 3 * time.Second, &cfg.Grace: 5 * time.Second, &cfg.Resend: 30 * time.Second,
	} {
		if *d == 0 {
			*d = def
		}
	}
	return &Sweeper{cfg: cfg, swept: registerSwept(cfg.Registerer)}, nil
}

// Run sweeps until ctx ends. It begins at once, because a process that starts takes over what another left.
func (s *Sweeper) Run(ctx context.Context, driver Driver) error {
	for failing := false; ; {
		err := s.Sweep(ctx, driver)
		if err != nil && ctx.Err() == nil && !failing {
			s.cfg.Log.Warn("sweep failed, will be tried again", "error", err)
		}
		failing = err != nil
		wait := s.cfg.Interval/2 + time.Duration(rand.Int64N(int64(s.cfg.Interval)))
		if !pauseFor(ctx, wait) {
			return nil
		}
	}
}

// Sweep sends what is due now.
func (s *Sweeper) Sweep(ctx context.Context, driver Driver) error {
	ctx, cancel := context.WithTimeout(ctx, StepTimeout)
	defer cancel()
	for {
		ids, dueBy, err := s.dueApps(ctx)
		if err != nil || len(ids) == 0 {
			return err
		}
		if err := wakeApps(ctx, driver, ids); err != nil {
			return fmt.Errorf("send %d wake-ups: %w", len(ids), err)
		}
		s.swept.Add(float64(len(ids)))
		err = s.cfg.Store.Update(ctx, func(tx SweepTx) error { return tx.MarkWakesSent(ids, dueBy) })
		if err != nil {
			return fmt.Errorf("mark wake-ups sent: %w", err)
		}
		if len(ids) < sendBatch {
			return nil
		}
	}
}

// Lost marks the wake-ups that were sent as lost. The next sweep sends them again, without waiting for
// Resend.
func (s *Sweeper) Lost(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, StepTimeout)
	defer cancel()
	var lost int64
	err := s.cfg.Store.Update(ctx, func(tx SweepTx) (err error) {
		lost, err = tx.UnsendWakes()
		return err
	})
	if err != nil {
		return fmt.Errorf("note that wake-ups are lost: %w", err)
	}
	if lost > 0 {
		s.cfg.Log.Warn("wake-ups were lost, will be sent again", "apps", lost)
	}
	return nil
}

// dueApps returns the apps with due wake-ups, and when the last of them was due. The time bounds the later
// MarkWakesSent: if this process stalls in between, other processes may write rows that must not be marked.
func (s *Sweeper) dueApps(ctx context.Context) (ids []string, dueBy int64, err error) {
	err = s.cfg.Store.View(ctx, func(tx SweepTx) error {
		rows, err := tx.DueWakes(s.cfg.Grace.Milliseconds(), s.cfg.Resend.Milliseconds(), sendBatch)
		if err != nil {
			return fmt.Errorf("list wake-ups that are due: %w", err)
		}
		ids, dueBy = ids[:0], 0
		for _, r := range rows {
			ids = append(ids, r.AppID)
			dueBy = max(dueBy, r.Due)
		}
		return nil
	})
	return ids, dueBy, err
}
