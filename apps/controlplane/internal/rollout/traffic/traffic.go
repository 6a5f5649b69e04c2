// Package traffic asks agents for the traffic that their gateways measured, for the checks of rollouts on a control
// plane without Prometheus. It decides nothing: a figure that it cannot get becomes a problem, and package plan
// decides what follows.
//
// A region gets one request for all measurements that are due there, through the process that holds its stream. A
// failed request is not repeated before the next interval.
package traffic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan"
	"github.com/windlass-run/windlass/apps/controlplane/internal/plan/analysis"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

const (
	// timeout is much longer than an agent takes to answer from its memory.
	timeout = 10 * time.Second
	// maxRegions is how many regions a step asks at once.
	maxRegions = 16
)

// Source takes measurements from gateways. It is safe for concurrent use.
type Source struct {
	// Ask sends a request to a region's agent, as peers.Service does. The context has a deadline. Ask fails with
	// model.ErrAgentUnreachable if the agent cannot be reached.
	Ask func(ctx context.Context, regionID string, req *agentv1.Request) ([]byte, error)
}

// Measure takes the measurements that are due. A measurement that fails has a problem in its figures.
func (s Source) Measure(ctx context.Context, due []plan.Measure) []plan.Measurement {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out := make([]plan.Measurement, len(due))
	regions := map[string][]int{}
	for i, m := range due {
		out[i] = plan.Measurement{RegionID: m.RegionID, Check: m.Check, Since: m.Since, At: time.Now().UnixMilli()}
		if m.Traffic == nil {
			out[i].Figures.Problem = "gateways do not have this figure, and this control plane reads no Prometheus: its operator has to start it with --prometheus-url"
			continue
		}
		regions[m.RegionID] = append(regions[m.RegionID], i)
	}
	slots := make(chan struct{}, maxRegions)
	var wg sync.WaitGroup
	for _, region := range slices.Sorted(maps.Keys(regions)) {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			s.measureRegion(ctx, region, regions[region], due, out)
		})
	}
	wg.Wait()
	return out
}

// measureRegion takes the measurements of one region. which has their indexes in due.
func (s Source) measureRegion(ctx context.Context, id string, which []int, due []plan.Measure, out []plan.Measurement) {
	req := &agentv1.TrafficRequest{}
	for _, i := range which {
		t := due[i].Traffic
		req.Queries = append(req.Queries, &agentv1.TrafficQuery{DeploymentId: t.New, Window: durationpb.New(t.Window)})
		if t.Old != "" {
			req.Queries = append(req.Queries, &agentv1.TrafficQuery{DeploymentId: t.Old, Window: durationpb.New(t.Window)})
		}
	}
	seen, err := s.askTraffic(ctx, id, req)
	at := time.Now().UnixMilli()
	for _, i := range which {
		out[i].At = at
		if err != nil {
			out[i].Figures.Problem = err.Error()
			continue
		}
		t, f := due[i].Traffic, &out[i].Figures
		f.New, f.NewSamples = t.Figure(seen[0])
		seen = seen[1:]
		if t.Old != "" {
			f.Old, f.OldSamples = t.Figure(seen[0])
			seen = seen[1:]
		}
	}
}

// askTraffic returns the traffic that gateways saw, in the order of the queries.
func (s Source) askTraffic(ctx context.Context, id string, req *agentv1.TrafficRequest) ([]analysis.Seen, error) {
	data, err := s.Ask(ctx, id, &agentv1.Request{Kind: &agentv1.Request_Traffic{Traffic: req}})
	switch {
	case errors.Is(err, model.ErrAgentUnreachable):
		return nil, errors.New("the region's agent cannot be reached")
	case err != nil:
		return nil, fmt.Errorf("the region's agent does not report the traffic of its gateways: %w", err)
	}
	var res agentv1.TrafficResponse
	if err := proto.Unmarshal(data, &res); err != nil || len(res.Traffic) != len(req.Queries) {
		return nil, errors.New("the region's agent did not answer with the traffic of its gateways: update it")
	}
	if res.Gateways == 0 {
		return nil, errors.New("no gateway serves the region, so its requests are not measured: run a gateway, or start the control plane with --prometheus-url")
	}
	out := make([]analysis.Seen, len(res.Traffic))
	for i, t := range res.Traffic {
		out[i] = analysis.Seen{Requests: t.Requests, Errors: t.Errors, Streams: t.Streams, LatencyP95: t.LatencyP95, FirstTokenP95: t.FirstTokenP95}
	}
	return out, nil
}
