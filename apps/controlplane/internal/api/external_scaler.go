package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/topology"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/pkg/scaling"
	"github.com/windlass-run/windlass/proto/gen/externalscaler"
	"github.com/windlass-run/windlass/proto/gen/externalscaler/externalscalerconnect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Keys of the metadata of a KEDA trigger. KEDA adds other keys, such as scalerAddress.
const (
	// keyOfTrigger is the name of a variable in the ScaledObject. KEDA sends the value of the variable.
	keyOfTrigger        = "apiKeyFromEnv"
	appOfTrigger        = "app"
	regionOfTrigger     = "region"
	metricOfTrigger     = "metric"
	targetOfTrigger     = "target"
	activationOfTrigger = "activationTarget"
	roleOfTrigger       = "role"
)

const (
	// activeEvery is how often a stream checks whether the workload must run. Regions report no more often.
	activeEvery = 5 * time.Second
	// specEvery is how often a stream checks whether the target of the app's scaling has changed.
	specEvery = 30 * time.Second
)

// ExternalScaler returns the handler of KEDA's calls. The options must include one that calls AdmitScaler.
func (a *API) ExternalScaler(options ...connect.HandlerOption) Handler {
	path, h := externalscalerconnect.NewExternalScalerHandler(externalScaler{a.server}, options...)
	return Handler{Path: path, Handler: h}
}

// AdmitScaler admits calls of KEDA without a credential in the header, because the credential is in the message. All
// calls from one address share the memory budget of one caller.
func (a *API) AdmitScaler(_ context.Context, call rpc.Call) (rpc.Admission, error) {
	return rpc.Admission{Caller: admission.ClientKey(call.Client)}, nil
}

// IsActive reports whether the metric is above the trigger's activationTarget.
func (a externalScaler) IsActive(ctx context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.IsActiveResponse, error) {
	t, err := a.admittedTrigger(ctx, externalscalerconnect.ExternalScalerIsActiveProcedure, ref)
	if err != nil {
		return nil, err
	}
	active, err := a.isActive(ctx, t)
	if err != nil {
		return nil, err
	}
	return &externalscaler.IsActiveResponse{Result: active}, nil
}

// StreamIsActive sends the result of IsActive at once and after each change. It ends when the value is not known, so
// that KEDA does not use an old value.
func (a externalScaler) StreamIsActive(ctx context.Context, ref *externalscaler.ScaledObjectRef, out *connect.ServerStream[externalscaler.IsActiveResponse]) error {
	by, err := a.admitByMessage(ctx, externalscalerconnect.ExternalScalerStreamIsActiveProcedure, ref)
	if err != nil {
		return err
	}
	var t *trigger
	var sent *bool
	return a.sendRepeatedly(ctx, by, activeEvery, func(ctx context.Context) error {
		if t == nil {
			if t, err = a.triggerOf(ctx, by, ref); err != nil {
				return err
			}
		}
		active, err := a.isActive(ctx, t)
		if err != nil || sent != nil && *sent == active {
			return err
		}
		sent = &active
		return sendTo(out, &externalscaler.IsActiveResponse{Result: active})
	})
}

// GetMetricSpec returns the metric's name and the target for one replica.
func (a externalScaler) GetMetricSpec(ctx context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.GetMetricSpecResponse, error) {
	t, err := a.admittedTrigger(ctx, externalscalerconnect.ExternalScalerGetMetricSpecProcedure, ref)
	if err != nil {
		return nil, err
	}
	return t.metricSpec(), nil
}

// StreamMetricSpec sends the result of GetMetricSpec at once and after each change.
func (a externalScaler) StreamMetricSpec(ctx context.Context, ref *externalscaler.ScaledObjectRef, out *connect.ServerStream[externalscaler.GetMetricSpecResponse]) error {
	by, err := a.admitByMessage(ctx, externalscalerconnect.ExternalScalerStreamMetricSpecProcedure, ref)
	if err != nil {
		return err
	}
	var sent *externalscaler.GetMetricSpecResponse
	return a.sendRepeatedly(ctx, by, specEvery, func(ctx context.Context) error {
		t, err := a.triggerOf(ctx, by, ref)
		if err != nil {
			return err
		}
		spec := t.metricSpec()
		if proto.Equal(sent, spec) {
			return nil
		}
		sent = spec
		return sendTo(out, spec)
	})
}

// GetMetrics returns the metric's value. It fails if the value is not known.
func (a externalScaler) GetMetrics(ctx context.Context, req *externalscaler.GetMetricsRequest) (*externalscaler.GetMetricsResponse, error) {
	t, err := a.admittedTrigger(ctx, externalscalerconnect.ExternalScalerGetMetricsProcedure, req.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	// The metadata may have changed since KEDA read the name.
	if name := t.metricName(); req.GetMetricName() != name {
		return nil, apierr.Invalid("metric_name", fmt.Sprintf("the metric of the trigger is %s, not %q", name, req.GetMetricName()))
	}
	v, err := a.measuredValue(ctx, t)
	if err != nil {
		return nil, err
	}
	return &externalscaler.GetMetricsResponse{MetricValues: []*externalscaler.MetricValue{
		{MetricName: t.metricName(), MetricValue: roundUp(v), MetricValueFloat: v},
	}}, nil
}

// roundUp returns the value as the integer that earlier releases of KEDA read. It rounds up, so that a small load is
// not 0.
func roundUp(v float64) int64 { return int64(math.Ceil(min(v, 1<<53))) }

func sendTo[T any](out *connect.ServerStream[T], m *T) error {
	if err := out.Send(m); err != nil {
		return fmt.Errorf("send to KEDA: %w", err)
	}
	return nil
}

// admitByMessage authenticates a call by the API key in its message. Refusals are written to the audit.
func (a externalScaler) admitByMessage(ctx context.Context, procedure string, ref *externalscaler.ScaledObjectRef) (by caller, err error) {
	client := rpc.ClientOf(ctx)
	by.Procedure = procedure
	defer func() {
		if err != nil {
			a.noteRefusal(by, client, err)
		}
	}()
	value := strings.TrimSpace(ref.GetScalerMetadata()[keyOfTrigger])
	if value == "" {
		return by, unauthenticatedError("the call has no API key: set "+keyOfTrigger+" in the trigger's metadata to the name of a variable of the scaled container, whose value is the key",
			"Use a key of role viewer: `windlass key create`.")
	}
	key, err := a.keys.find(ctx, value, client, time.Now())
	if err != nil {
		return by, err
	}
	by.APIKey = key
	if !viewer.allowsRole(key.Role) {
		return by, apierr.Denied(fmt.Sprintf("a key of role %s may not read apps", model.RoleName(key.Role)), "Use a key of role viewer.")
	}
	return by, a.takeRead(key, time.Now())
}

// trigger is a parsed trigger of KEDA.
type trigger struct {
	app        model.App
	region     model.Region
	role       string // empty: the app
	metric     scaling.Metric
	target     float64
	activation float64
}

// metricName returns the metric's name for KEDA, in lower case because Kubernetes uses it in URLs.
func (t *trigger) metricName() string {
	name := "windlass-" + strings.ToLower(string(t.metric.Type))
	if t.role != "" {
		name += "-" + t.role
	}
	return name
}

func (t *trigger) metricSpec() *externalscaler.GetMetricSpecResponse {
	return &externalscaler.GetMetricSpecResponse{MetricSpecs: []*externalscaler.MetricSpec{
		{MetricName: t.metricName(), TargetSize: roundUp(t.target), TargetSizeFloat: t.target},
	}}
}

func (a externalScaler) admittedTrigger(ctx context.Context, procedure string, ref *externalscaler.ScaledObjectRef) (*trigger, error) {
	by, err := a.admitByMessage(ctx, procedure, ref)
	if err != nil {
		return nil, err
	}
	return a.triggerOf(ctx, by, ref)
}

// triggerOf parses the metadata, and reads the app, region and metric that it names.
func (a externalScaler) triggerOf(ctx context.Context, by caller, ref *externalscaler.ScaledObjectRef) (*trigger, error) {
	given := ref.GetScalerMetadata()
	for _, key := range []string{appOfTrigger, regionOfTrigger, metricOfTrigger} {
		if given[key] == "" {
			return nil, apierr.Invalid(key, fmt.Sprintf("the trigger's metadata has no %s: set %s, %s and %s", key, appOfTrigger, regionOfTrigger, metricOfTrigger))
		}
	}
	t := &trigger{role: given[roleOfTrigger]}
	err := a.cfg.Store.View(ctx, func(tx Tx) (err error) {
		if t.app, err = a.findApp(tx, by.WorkspaceID, given[appOfTrigger], false); err != nil {
			return err
		}
		if t.region, err = liveRegion(tx, t.app, given[regionOfTrigger]); err != nil {
			return err
		}
		found, err := tx.GetScalings([]string{t.app.ID})
		if err != nil {
			return fmt.Errorf("read scaling of app %s: %w", t.app.ID, err)
		}
		if len(found) == 0 || found[0].Policy == nil {
			return apierr.Invalid(appOfTrigger, fmt.Sprintf(
				"the load of app %s is not known, because the app has no scaling policy: add `scaling` to the app's file, with `mode: advise` if it should change nothing", t.app.Name))
		}
		metrics, err := metricsOf(found[0].Policy, t.app, t.role)
		if err != nil {
			return err
		}
		t.metric, err = metricNamed(metrics, t.app, given[metricOfTrigger])
		return err
	})
	if err != nil {
		return nil, err
	}
	t.target = t.metric.Target
	if text := given[targetOfTrigger]; text != "" {
		if t.target, err = amountOf(targetOfTrigger, text, t.metric.Type); err != nil {
			return nil, err
		}
	}
	if text := given[activationOfTrigger]; text != "" && text != "0" {
		t.activation, err = amountOf(activationOfTrigger, text, t.metric.Type)
	}
	return t, err
}

func amountOf(key, text string, of scaling.MetricType) (float64, error) {
	v, fault := scaling.ParseTarget(text, of)
	if fault != nil {
		return 0, apierr.Invalid(key, fmt.Sprintf("%s: %s: %s", key, fault.Message, fault.Fix))
	}
	return v, nil
}

// liveRegion finds a region in which the app's live deployment runs.
func liveRegion(tx Tx, app model.App, ref string) (model.Region, error) {
	rows, err := tx.ListTopology([]string{app.ID})
	if err != nil {
		return model.Region{}, fmt.Errorf("list topology of app %s: %w", app.ID, err)
	}
	ids := map[string]bool{}
	for _, t := range rows {
		if t.DeploymentID == app.LiveDeploymentID && topology.Active(t) {
			ids[t.RegionID] = true
		}
	}
	return regionAmong(tx, app, ids, ref)
}

// metricsOf returns the metrics by which the app, or a role of its pool, scales.
func metricsOf(policy *windlassv1.ScalingPolicy, app model.App, role string) ([]scaling.Metric, error) {
	if len(policy.GetRoles()) == 0 {
		if role != "" {
			return nil, apierr.Invalid(roleOfTrigger, fmt.Sprintf("the roles of app %s have no separate load, because a replica is a whole group: leave role out", app.Name))
		}
		p, fault := scaling.New(policy, "")
		if fault != nil {
			return nil, fmt.Errorf("read scaling of app %s: %w", app.ID, fault)
		}
		return p.Metrics, nil
	}
	policies, fault := scaling.NewRoles(policy, "")
	if fault != nil {
		return nil, fmt.Errorf("read scaling of app %s: %w", app.ID, fault)
	}
	var names []string
	for _, p := range policies {
		if names = append(names, p.Role); p.Role == role {
			return p.Metrics, nil
		}
	}
	return nil, apierr.Invalid(roleOfTrigger, fmt.Sprintf("role: app %s is a pool, and its scaling has no role %q: set role to one of %s", app.Name, role, strings.Join(names, ", ")))
}

// metricNamed returns the metric of type word.
func metricNamed(metrics []scaling.Metric, app model.App, word string) (found scaling.Metric, err error) {
	var has []string
	n := 0
	for _, m := range metrics {
		if has = append(has, string(m.Type)); string(m.Type) == word {
			found = m
			n++
		}
	}
	switch slices.Sort(has); {
	case n == 0:
		return found, apierr.Invalid(metricOfTrigger, fmt.Sprintf("metric: scaling of app %s has no metric of type %q, but %s: name one of these, or add it to the app's file",
			app.Name, word, strings.Join(slices.Compact(has), ", ")))
	case n > 1:
		return found, apierr.Invalid(metricOfTrigger, fmt.Sprintf("metric: scaling of app %s has %s metrics of type %s: keep only one of them in the app's file",
			app.Name, strconv.Itoa(n), word))
	}
	return found, nil
}

func (a externalScaler) isActive(ctx context.Context, t *trigger) (bool, error) {
	v, err := a.measuredValue(ctx, t)
	return v > t.activation, err
}

// measuredValue returns the metric's value from the last scaling decision. The process that has the region's stream makes
// these decisions. measuredValue fails if there is no current value, so that KEDA never uses an old value.
func (a externalScaler) measuredValue(ctx context.Context, t *trigger) (float64, error) {
	var now *windlassv1.RegionScaling
	var err error
	if a.cfg.Scaling != nil {
		now, err = a.cfg.Scaling.Scaling(ctx, t.region.ID, t.app.ID)
	}
	switch {
	case errors.Is(err, model.ErrAgentUnreachable):
		return 0, rpc.Error(connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_REGION_UNREACHABLE, regionOfTrigger,
			fmt.Sprintf("the load of app %s is not known: no agent of region %s is connected, or the process of the control plane to which it is connected does not answer", t.app.Name, t.region.ShownName()))
	case err != nil:
		return 0, fmt.Errorf("read load of app %s in region %s: %w", t.app.ID, t.region.ID, err)
	case now == nil:
		return 0, unknownLoad(t, fmt.Sprintf("the region has not reported it for %s", scaling.Fresh))
	}
	if t.role != "" {
		i := slices.IndexFunc(now.GetRoles(), func(r *windlassv1.RegionScaling) bool { return r.GetRole() == t.role })
		if i < 0 {
			return 0, unknownLoad(t, "the region has not reported the role")
		}
		now = now.GetRoles()[i]
	}
	for _, want := range now.GetWants() {
		if m := want.GetMetric(); m.GetType() != t.metric.Type.Proto() || m.GetQuery() != t.metric.Query {
			continue
		}
		if want.Value == nil {
			why := "it is missing"
			if want.GetProblem() != "" {
				why += ": " + want.GetProblem()
			}
			return 0, unknownLoad(t, why)
		}
		return want.GetValue(), nil
	}
	return 0, unknownLoad(t, "the app's scaling has changed, and the metric was not measured since")
}

func unknownLoad(t *trigger, why string) error {
	return rpc.ErrorWith(connect.CodeUnavailable, &windlassv1.ErrorDetail{
		Reason: windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, Field: metricOfTrigger, Fix: fmt.Sprintf("`windlass scaling status %s` shows it.", t.app.Name),
	}, fmt.Sprintf("%s of app %s in region %s is not known: %s", t.metric.Type, t.app.Name, t.region.ShownName(), why))
}

// sendRepeatedly calls send at once and then at each interval. It ends when send fails, the caller leaves, its key is no
// longer valid, or the server stops. It counts as a watcher.
func (a externalScaler) sendRepeatedly(ctx context.Context, by caller, every time.Duration, send func(context.Context) error) error {
	leave, err := a.hub.enterWithoutTopic(by)
	if err != nil {
		return a.countRefusal(err)
	}
	defer leave()
	again, good := time.NewTicker(every), time.NewTicker(a.cfg.KeyCacheTTL)
	defer again.Stop()
	defer good.Stop()
	sendInTime := func() error {
		bounded, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		return send(bounded)
	}
	if err := sendInTime(); err != nil {
		return err
	}
	for {
		select {
		case <-again.C:
			if err := sendInTime(); err != nil {
				return err
			}
		case <-good.C:
			if err := a.stillIn(ctx, by); err != nil {
				return err
			}
		case <-a.hub.stopped:
			return rpc.Error(connect.CodeUnavailable, windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, "", "the server is stopping: call again")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
