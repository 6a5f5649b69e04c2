package rollout

import (
	"context"
	"crypto/sha256"
	"slices"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/telemetry"
)

// A rollout's trace spans steps, processes and regions:
//
//	the call -> deployment.workflow -> deployment.build
//	                                -> deployment.topology.create
//	                                -> deployment.events.emit -> deployment.apply.REGION
//	                                -> deployment.status.poll
//
// The rollout's row holds the call's context, which survives every delay. The id of deployment.workflow is
// derived from the rollout's, so that every step knows its parent. The step that ends the rollout writes the
// span itself.

func workflowSpanID(rolloutID string) (id trace.SpanID) {
	sum := sha256.Sum256([]byte("deployment.workflow\x00" + rolloutID))
	copy(id[:], sum[:])
	return id
}

// underRollout makes deployment.workflow the parent of later spans.
func underRollout(ctx context.Context, r *model.Rollout) context.Context {
	if r == nil || r.Traceparent == "" {
		return ctx
	}
	call := trace.SpanContextFromContext(telemetry.Extract(context.Background(), r.Traceparent))
	if !call.IsValid() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, call.WithSpanID(workflowSpanID(r.ID)))
}

// stepSpans are the spans of one pass. nil has none.
type stepSpans struct {
	in          *model.Rollout
	traceparent string
	open        []trace.Span
}

func (s *Stepper) startSpans(ctx context.Context, d decision) *stepSpans {
	sp := &stepSpans{in: d.in.Rollout}
	ctx = underRollout(ctx, d.in.Rollout)
	start := func(ctx context.Context, name string) context.Context {
		ctx, span := s.cfg.Tracer.Start(ctx, name)
		sp.open = append(sp.open, span)
		return ctx
	}
	created, grew := changesOf(d)
	if created {
		start(ctx, "deployment.topology.create")
	}
	if grew {
		sp.traceparent = telemetry.Inject(start(ctx, "deployment.events.emit"))
	}
	if wasPoll(d) {
		start(ctx, "deployment.status.poll")
	}
	return sp
}

type rowKey struct{ deployment, region string }

// changesOf reports whether rows are new, and whether regions are sent a new generation.
func changesOf(d decision) (created, grew bool) {
	before := make(map[rowKey]int64, len(d.in.Topology))
	for _, t := range d.in.Topology {
		before[rowKey{t.DeploymentID, t.RegionID}] = t.Generation
	}
	for _, t := range d.out.Topology {
		was, had := before[rowKey{t.DeploymentID, t.RegionID}]
		created = created || !had
		grew = grew || t.Generation > was
	}
	return created, grew || len(d.out.Routes) > 0
}

// stampRows returns the plan's rows. Rows with a new generation get the decision's trace. Without a rollout, a row keeps
// the trace of its last rollout.
func (sp *stepSpans) stampRows(d decision) []model.Topology {
	if sp == nil || sp.in == nil || sp.traceparent == "" {
		return d.out.Topology
	}
	before := make(map[rowKey]int64, len(d.in.Topology))
	for _, t := range d.in.Topology {
		before[rowKey{t.DeploymentID, t.RegionID}] = t.Generation
	}
	rows := slices.Clone(d.out.Topology)
	for i, t := range rows {
		if t.Generation > before[rowKey{t.DeploymentID, t.RegionID}] {
			rows[i].Traceparent = sp.traceparent
		}
	}
	return rows
}

func (sp *stepSpans) endSpans(err error) {
	if sp == nil {
		return
	}
	for _, span := range sp.open {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// writeSpan writes the rollout's own span, from its creation to its end.
func (s *Stepper) writeSpan(r model.Rollout) {
	ctx := telemetry.WithSpanID(telemetry.Extract(context.Background(), r.Traceparent), workflowSpanID(r.ID))
	_, span := s.cfg.Tracer.Start(ctx, "deployment.workflow", trace.WithTimestamp(time.UnixMilli(r.CreatedAt)))
	if r.Reason != "" {
		span.SetStatus(codes.Error, r.Reason+": "+r.Message)
	}
	span.End(trace.WithTimestamp(time.UnixMilli(r.FinishedAt)))
}
