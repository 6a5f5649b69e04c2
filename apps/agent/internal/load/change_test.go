package load_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/agent/internal/load"
	"github.com/windlass-run/windlass/pkg/histogram"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

func TestDue(t *testing.T) {
	t.Parallel()
	var times histogram.Counts
	for range 100 {
		times[histogram.Bucket(80*time.Millisecond)]++
	}
	before := &agentv1.LoadReport{
		AppId: "app_1", At: 1_700_000_000_000, Queued: new(100.0),
		Deployments: []*agentv1.DeploymentLoad{{
			DeploymentId: "dep_1", Ready: 2, InFlight: new(100.0), Rate: new(10.0), Levels: map[string]float64{"cpu": 50}, Latency: times.Pack(),
		}},
	}
	due := func(change func(*agentv1.LoadReport)) bool {
		now := proto.CloneOf(before)
		now.At += (5 * time.Second).Milliseconds()
		change(now)
		return len(load.Due(map[string]*agentv1.LoadReport{"app_1": before}, map[string]*agentv1.LoadReport{"app_1": now})) > 0
	}
	of := func(change func(*agentv1.DeploymentLoad)) func(*agentv1.LoadReport) {
		return func(r *agentv1.LoadReport) { change(r.Deployments[0]) }
	}
	slower := times
	for range 10 {
		slower[histogram.Bucket(4*time.Second)]++
	}
	more := times
	for i := range more {
		more[i] *= 3
	}
	for name, c := range map[string]struct {
		want   bool
		change func(*agentv1.LoadReport)
	}{
		"nothing changed":         {false, func(*agentv1.LoadReport) {}},
		"5 percent":               {false, func(r *agentv1.LoadReport) { r.Queued = new(105.0) }},
		"6 percent more":          {true, func(r *agentv1.LoadReport) { r.Queued = new(106.0) }},
		"6 percent less":          {true, func(r *agentv1.LoadReport) { r.Queued = new(94.0) }},
		"to nothing":              {true, func(r *agentv1.LoadReport) { r.Queued = new(0.0) }},
		"not known any more":      {true, func(r *agentv1.LoadReport) { r.Queued = nil }},
		"another instance":        {true, of(func(d *agentv1.DeploymentLoad) { d.Ready = 3 })},
		"one starts":              {true, of(func(d *agentv1.DeploymentLoad) { d.Starting = 1 })},
		"raised by the agent":     {true, of(func(d *agentv1.DeploymentLoad) { d.RaisedTo = 4 })},
		"in flight by 3 percent":  {false, of(func(d *agentv1.DeploymentLoad) { d.InFlight = new(97.0) })},
		"in flight":               {true, of(func(d *agentv1.DeploymentLoad) { d.InFlight = new(90.0) })},
		"rate not known any more": {true, of(func(d *agentv1.DeploymentLoad) { d.Rate = nil })},
		"level by 4 percent":      {false, of(func(d *agentv1.DeploymentLoad) { d.Levels["cpu"] = 52 })},
		"level":                   {true, of(func(d *agentv1.DeploymentLoad) { d.Levels["cpu"] = 56 })},
		"another level":           {true, of(func(d *agentv1.DeploymentLoad) { d.Levels["queue"] = 1 })},
		"no level":                {true, of(func(d *agentv1.DeploymentLoad) { d.Levels = nil })},
		"more of the same times":  {false, of(func(d *agentv1.DeploymentLoad) { d.Latency = more.Pack() })},
		"slower":                  {true, of(func(d *agentv1.DeploymentLoad) { d.Latency = slower.Pack() })},
		"no times":                {true, of(func(d *agentv1.DeploymentLoad) { d.Latency = nil })},
		"another deployment":      {true, func(r *agentv1.LoadReport) { r.Deployments = append(r.Deployments, &agentv1.DeploymentLoad{}) }},
		"30 s later":              {true, func(r *agentv1.LoadReport) { r.At += 25_000 }},
		"the clock was set back":  {true, func(r *agentv1.LoadReport) { r.At -= 60_000 }},
	} {
		require.Equal(t, c.want, due(c.change), name)
	}
	require.Equal(t, []*agentv1.LoadReport{before}, load.Due(nil, map[string]*agentv1.LoadReport{"app_1": before}), "after a reconnect, all loads are due")
	require.Empty(t, load.Due(map[string]*agentv1.LoadReport{"app_1": before}, nil))
}
