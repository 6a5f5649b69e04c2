package ingest

import (
	"maps"
	"math"
	"time"

	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

const (
	// maxFigure is above any valid load of a region.
	maxFigure = 1e9
	// maxReplicas is above the maximum number of replicas of an app.
	maxReplicas = 100_000
	// maxTimes is the maximum number of requests in a bucket of latencies.
	maxTimes = 1_000_000_000_000
)

// levels are the known names of levels. A later release of the agent may have others.
var levels = map[string]bool{"kvCache": true, "cpu": true, "memory": true, "queue": true, "models": true}

// takeLoads passes on the loads of an accepted report. Loads are not stored. region comes from the credential, and
// the receiver drops loads of apps that do not run there.
func (s *Service) takeLoads(region string, reports []*agentv1.LoadReport, now time.Time) {
	if len(reports) == 0 {
		return
	}
	sound := make([]*agentv1.LoadReport, 0, len(reports))
	for _, r := range reports {
		if !soundLoad(r) {
			s.metrics.loadsDropped.WithLabelValues("invalid").Inc()
			continue
		}
		s.metrics.loadAge.Observe(max(now.Sub(time.UnixMilli(r.At)), 0).Seconds())
		sound = append(sound, r)
	}
	s.metrics.loads.Add(float64(len(sound)))
	if s.cfg.Loads == nil || len(sound) == 0 {
		return
	}
	if unknown := s.cfg.Loads(region, sound); unknown > 0 {
		s.metrics.loadsDropped.WithLabelValues("unknown").Add(float64(unknown))
	}
}

// soundLoad reports whether all figures of the load are plausible. It removes unknown levels and their problems.
func soundLoad(r *agentv1.LoadReport) bool {
	if r.AppId == "" || r.At <= 0 || !soundFigure(r.Queued) {
		return false
	}
	maps.DeleteFunc(r.Problems, func(name, _ string) bool { return !levels[name] })
	seen := make(map[string]bool, len(r.Deployments))
	for _, d := range r.Deployments {
		if d.DeploymentId == "" || seen[d.DeploymentId] || !soundFigure(d.InFlight) || !soundFigure(d.Rate) || !soundTimes(d.FirstToken) || !soundTimes(d.Latency) {
			return false
		}
		seen[d.DeploymentId] = true
		for _, n := range []int32{d.Ready, d.Starting, d.RaisedTo} {
			if n < 0 || n > maxReplicas {
				return false
			}
		}
		for name, v := range d.Levels {
			if !levels[name] {
				delete(d.Levels, name)
			} else if !soundFigure(&v) {
				return false
			}
		}
	}
	return true
}

// soundFigure reports whether a figure is absent, or finite, not negative and not huge.
func soundFigure(v *float64) bool {
	return v == nil || !math.IsNaN(*v) && *v >= 0 && *v <= maxFigure
}

func soundTimes(counts []uint64) bool {
	for _, n := range counts {
		if n > maxTimes {
			return false
		}
	}
	return true
}
