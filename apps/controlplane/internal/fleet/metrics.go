package fleet

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (s *Service) registerMetrics() {
	s.expired = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "windlass_region_leases_expired_total", Help: "How often a region became unreachable.",
	})
	s.forgotten = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "windlass_forgotten_rows_total", Help: "Rows that were deleted because of their age or their number.",
	}, []string{"what"})
	s.rounds = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "windlass_forget_rounds_total", Help: "Rounds of maintenance in which nothing failed.",
	})
	s.misuse = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "windlass_agent_credential_misuse_total",
		Help: "Calls with an agent's credential that seem to come from another program: without the credential's key, or from two places. The audit of the region's workspace names the region.",
	}, []string{"how"})
	for _, how := range []string{withoutKey, twoPlaces} {
		s.misuse.WithLabelValues(how)
	}
	s.cfg.Registerer.MustRegister(s.expired, s.forgotten, s.rounds, s.misuse, newGauges(s))
}

const (
	// gaugesFor is how long all scrapes use the same count. This also applies to a failed count, so that frequent
	// scrapes put no load on an unreachable database.
	gaugesFor = 5 * time.Second
	// gaugesTimeout is shorter than the default timeout of a scrape.
	gaugesTimeout = 5 * time.Second
)

// gauges exports the number of instances, which are counted during a scrape. While the database does not answer, it
// exports nothing.
type gauges struct {
	svc      *Service
	total    *prometheus.Desc
	byStatus *prometheus.Desc

	mu     sync.Mutex
	at     time.Time
	counts map[windlassv1.InstanceStatus]int
}

func newGauges(s *Service) *gauges {
	return &gauges{
		svc:      s,
		total:    prometheus.NewDesc("deployment_instances_total", "Instances that exist, in all regions.", nil, nil),
		byStatus: prometheus.NewDesc("deployment_instances_by_status", "Instances by status, in all regions. Terminated instances count until retention deletes them.", []string{"status"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *gauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.total
	ch <- c.byStatus
}

// Collect implements prometheus.Collector.
func (c *gauges) Collect(ch chan<- prometheus.Metric) {
	counts := c.count(time.Now())
	if counts == nil {
		return
	}
	total := 0
	for number, name := range windlassv1.InstanceStatus_name {
		status := windlassv1.InstanceStatus(number)
		if status == windlassv1.InstanceStatus_INSTANCE_STATUS_UNSPECIFIED {
			continue
		}
		if status != windlassv1.InstanceStatus_INSTANCE_STATUS_TERMINATED {
			total += counts[status]
		}
		ch <- prometheus.MustNewConstMetric(c.byStatus, prometheus.GaugeValue, float64(counts[status]), strings.ToLower(strings.TrimPrefix(name, "INSTANCE_STATUS_")))
	}
	ch <- prometheus.MustNewConstMetric(c.total, prometheus.GaugeValue, float64(total))
}

// count returns the newest counts, nil if the count failed. Concurrent scrapes share one query.
func (c *gauges) count(now time.Time) map[windlassv1.InstanceStatus]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && now.Sub(c.at) < gaugesFor {
		return c.counts
	}
	ctx, cancel := context.WithTimeout(context.Background(), gaugesTimeout)
	defer cancel()
	err := c.svc.cfg.Store.View(ctx, func(tx Tx) (err error) {
		c.counts, err = tx.CountInstancesByStatus()
		return err
	})
	if err != nil {
		c.counts = nil
		c.svc.cfg.Log.Warn("cannot count instances", "error", err)
	}
	c.at = time.Now()
	return c.counts
}
