package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// GaugesTx has the queries of Gauges.
type GaugesTx interface {
	CountTopology() ([]model.TopologyCount, error)
	CountRegions() (map[windlassv1.RegionStatus]int, error)
	CountActiveRollouts() (model.ActiveRolloutCount, error)
	DueWakes(lostAfter, againAfter int64, limit int) ([]model.Wake, error)
}

// GaugesStore runs read transactions.
type GaugesStore interface {
	View(ctx context.Context, fn func(GaugesTx) error) error
}

// Gauges sets the gauges of topology, regions and rollouts in flight. Every process counts the same rows, so
// take the maximum over processes, not the sum.
type Gauges struct {
	store GaugesStore
	log   *slog.Logger
	gauges
}

// gaugesEvery is the average time between two counts, about as often as gauges are scraped.
const gaugesEvery = 15 * time.Second

// NewGauges checks its arguments and registers the gauges.
func NewGauges(store GaugesStore, log *slog.Logger, reg prometheus.Registerer) (*Gauges, error) {
	if store == nil || log == nil || reg == nil {
		return nil, errors.New("rollout: the gauges need a store, a logger and a registerer")
	}
	c := &Gauges{
		store: store, log: log,
		gauges: registerGauges(reg),
	}
	return c, nil
}

// Run counts until ctx ends.
func (c *Gauges) Run(ctx context.Context) error {
	for failing := false; ; {
		err := c.Count(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			c.log.Warn("topology was not counted, will be tried again", "error", err)
		}
		failing = err != nil
		if !pauseFor(ctx, gaugesEvery/2+time.Duration(rand.Int64N(int64(gaugesEvery)))) {
			return nil
		}
	}
}

// Count sets the gauges now.
func (c *Gauges) Count(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, StepTimeout)
	defer cancel()
	var (
		counts   []model.TopologyCount
		byState  map[windlassv1.RegionStatus]int
		inFlight model.ActiveRolloutCount
		due      []model.Wake
	)
	err := c.store.View(ctx, func(tx GaugesTx) (err error) {
		if counts, err = tx.CountTopology(); err != nil {
			return err
		}
		if byState, err = tx.CountRegions(); err != nil {
			return err
		}
		if inFlight, err = tx.CountActiveRollouts(); err != nil {
			return err
		}
		due, err = tx.DueWakes(0, 0, 1)
		return err
	})
	if err != nil {
		return fmt.Errorf("count topology, regions and rollouts: %w", err)
	}
	c.setActiveRollouts(inFlight, due, time.Now())
	for number, name := range windlassv1.RegionStatus_name {
		if state := windlassv1.RegionStatus(number); state != windlassv1.RegionStatus_REGION_STATUS_UNSPECIFIED {
			c.byState.WithLabelValues(strings.ToLower(strings.TrimPrefix(name, "REGION_STATUS_"))).Set(float64(byState[state]))
		}
	}
	regions, byStatus := map[string]bool{}, map[windlassv1.TopologyStatus]int{}
	for _, n := range counts {
		regions[n.RegionID] = true
		byStatus[n.Status] += n.Rows
	}
	c.regions.Set(float64(len(regions)))
	for _, s := range []windlassv1.TopologyStatus{
		windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTING,
		windlassv1.TopologyStatus_TOPOLOGY_STATUS_STARTED,
		windlassv1.TopologyStatus_TOPOLOGY_STATUS_STOPPING,
	} {
		label := strings.ToLower(strings.TrimPrefix(s.String(), "TOPOLOGY_STATUS_"))
		c.status.WithLabelValues(label).Set(float64(byStatus[s]))
	}
	return nil
}

// setActiveRollouts sets the gauges of rollouts in flight. due has the wake-up that has waited longest, if there is
// one. Its time is of the database's clock, which may be ahead of this process's clock.
func (c *Gauges) setActiveRollouts(active model.ActiveRolloutCount, due []model.Wake, now time.Time) {
	c.active.Set(float64(active.Rollouts))
	since := func(at int64) float64 { return max(0, now.Sub(time.UnixMilli(at)).Seconds()) }
	c.oldest.Set(0)
	if active.Rollouts > 0 {
		c.oldest.Set(since(active.OldestAt))
	}
	c.overdue.Set(0)
	if len(due) > 0 {
		c.overdue.Set(since(due[0].Due))
	}
}
