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

// SweeperConfig of a Sweeper.
type SweeperConfig struct {
	Store      SweepStore
	Driver     Driver
	Log        *slog.Logger
	Registerer prometheus.Registerer

	// Interval between sweeps, jittered by half of it. 0: 3 s, about what a person
	// takes for a hiccup.
	Interval time.Duration
	// Grace that a wake-up has before it counts as lost. 0: 5 s, many times what a
	// step takes on its way.
	Grace time.Duration
	// Resend is how long a swept app is left alone. 0: 30 s, so that a driver with
	// a backlog is not buried under what it already has.
	Resend time.Duration
}

// SweepTx and SweepStore are what a Sweeper needs of the store.
type SweepTx interface {
	OverdueWakes(due, sentBefore int64, limit int) ([]model.Wake, error)
	MarkWakesSent(appIDs []string, at int64) error
}

// SweepStore runs transactions.
type SweepStore interface {
	Update(ctx context.Context, fn func(SweepTx) error) error
	View(ctx context.Context, fn func(SweepTx) error) error
}

// Sweeper finds apps whose wake-up is overdue, whoever lost it, and sends it
// again. It is the net under every Driver.
type Sweeper struct {
	cfg   SweeperConfig
	swept prometheus.Counter
}

// NewSweeper checks cfg.
func NewSweeper(cfg SweeperConfig) (*Sweeper, error) {
	if cfg.Store == nil || cfg.Driver == nil || cfg.Log == nil || cfg.Registerer == nil {
		return nil, errors.New("rollout: the sweeper's Store, Driver, Log and Registerer are required")
	}
	for d, def := range map[*time.Duration]time.Duration{
		&cfg.Interval: 3 * time.Second, &cfg.Grace: 5 * time.Second, &cfg.Resend: 30 * time.Second,
	} {
		if *d == 0 {
			*d = def
		}
	}
	s := &Sweeper{cfg: cfg, swept: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "windlass_rollout_swept_total",
		Help: "Wake-ups that were overdue and sent again: lost, or behind a backlog.",
	})}
	cfg.Registerer.MustRegister(s.swept)
	return s, nil
}

// Run sweeps until ctx ends, first at once: a process that starts takes over
// what another left.
func (s *Sweeper) Run(ctx context.Context) error {
	for failing := false; ; {
		err := s.Sweep(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			s.cfg.Log.Warn("sweep failed, will be tried again", "error", err)
		}
		failing = err != nil
		wait := s.cfg.Interval/2 + time.Duration(rand.Int64N(int64(s.cfg.Interval)))
		if !pause(ctx, wait) {
			return nil
		}
	}
}

// Sweep sends what is overdue now.
func (s *Sweeper) Sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, StepTimeout)
	defer cancel()
	for {
		ids, err := s.overdue(ctx)
		if err != nil || len(ids) == 0 {
			return err
		}
		if err := wake(ctx, s.cfg.Driver, ids); err != nil {
			return fmt.Errorf("send %d overdue wake-ups: %w", len(ids), err)
		}
		s.swept.Add(float64(len(ids)))
		err = s.cfg.Store.Update(ctx, func(tx SweepTx) error { return tx.MarkWakesSent(ids, nowMillis()) })
		if err != nil {
			return fmt.Errorf("mark wake-ups sent: %w", err)
		}
		if len(ids) < sendBatch {
			return nil
		}
	}
}

func (s *Sweeper) overdue(ctx context.Context) (ids []string, err error) {
	now := nowMillis()
	err = s.cfg.Store.View(ctx, func(tx SweepTx) error {
		rows, err := tx.OverdueWakes(now-s.cfg.Grace.Milliseconds(), now-s.cfg.Resend.Milliseconds(), sendBatch)
		if err != nil {
			return fmt.Errorf("list overdue wake-ups: %w", err)
		}
		ids = ids[:0]
		for _, r := range rows {
			ids = append(ids, r.AppID)
		}
		return nil
	})
	return ids, err
}
