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

// GaugesTx and GaugesStore are what a Gauges needs of the store.
type GaugesTx interface {
	CountTopology() ([]model.TopologyCount, error)
}

// GaugesStore runs transactions that read.
type GaugesStore interface {
	View(ctx context.Context, fn func(GaugesTx) error) error
}

// Gauges keeps the gauges of topology. Every replica counts the same rows, so
// take the maximum over replicas, not the sum.
type Gauges struct {
	store   GaugesStore
	log     *slog.Logger
	regions prometheus.Gauge
	status  *prometheus.GaugeVec
}

// gaugesEvery is about how often gauges are scraped.
const gaugesEvery = 15 * time.Second

// NewGauges checks its arguments and registers the gauges.
func NewGauges(store GaugesStore, log *slog.Logger, reg prometheus.Registerer) (*Gauges, error) {
	if store == nil || log == nil || reg == nil {
		return nil, errors.New("rollout: the gauges need a store, a logger and a registerer")
	}
	c := &Gauges{
		store: store, log: log,
	}
	c.regions, c.status = registerTopology(reg)
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
		if !pause(ctx, gaugesEvery/2+time.Duration(rand.Int64N(int64(gaugesEvery)))) {
			return nil
		}
	}
}

// Count sets the gauges now.
func (c *Gauges) Count(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, StepTimeout)
	defer cancel()
	var counts []model.TopologyCount
	err := c.store.View(ctx, func(tx GaugesTx) (err error) {
		counts, err = tx.CountTopology()
		return err
	})
	if err != nil {
		return fmt.Errorf("count topology: %w", err)
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
