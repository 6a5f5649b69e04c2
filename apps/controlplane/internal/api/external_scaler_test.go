package api_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/api"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	"github.com/windlass-run/windlass/apps/controlplane/internal/trail"
	"github.com/windlass-run/windlass/pkg/rpc"
	"github.com/windlass-run/windlass/proto/gen/externalscaler"
	"github.com/windlass-run/windlass/proto/gen/externalscaler/externalscalerconnect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

const (
	unauthenticatedError = windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED
	unavailable          = windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE
)

// keda returns a client that calls like KEDA: with gRPC and without a credential in the header.
func (h *harness) keda() externalscalerconnect.ExternalScalerClient {
	client := rpc.NewHTTPClient(rpc.HTTPClientConfig{})
	h.t.Cleanup(client.CloseIdleConnections)
	return externalscalerconnect.NewExternalScalerClient(client, h.url, connect.WithGRPC())
}

// trigger returns the reference of a ScaledObject. metadata are keys and values, which are added to the default
// metadata.
func (h *harness) trigger(metadata ...string) *externalscaler.ScaledObjectRef {
	all := map[string]string{
		"scalerAddress": "windlass.example:7700", "enableTLS": "true",
		"apiKeyFromEnv": h.viewer, "app": "chat", "region": "us-east-1", "metric": "inFlight",
	}
	for i := 0; i < len(metadata); i += 2 {
		all[metadata[i]] = metadata[i+1]
	}
	return &externalscaler.ScaledObjectRef{Name: "router", Namespace: "web", ScalerMetadata: all}
}

// measured is a harness with an app that scales, and the newest decision for it.
type measured struct {
	*harness
	now atomic.Pointer[windlassv1.RegionScaling]
	err atomic.Pointer[error]
}

func (m *measured) set(wants ...*windlassv1.MetricWant) {
	m.now.Store(&windlassv1.RegionScaling{Wants: wants})
}

func wantOf(of windlassv1.ScalingMetric_Type, value float64) *windlassv1.MetricWant {
	return &windlassv1.MetricWant{Metric: &windlassv1.ScalingMetric{Type: of}, Value: &value}
}

const inFlight = windlassv1.ScalingMetric_TYPE_IN_FLIGHT

// decisions returns the decision for an app in a region.
type decisions func(regionID, appID string) (*windlassv1.RegionScaling, error)

func (d decisions) Scaling(_ context.Context, regionID, appID string) (*windlassv1.RegionScaling, error) {
	return d(regionID, appID)
}

func (d decisions) ScalingNow(context.Context, string) map[string]*windlassv1.RegionScaling {
	return nil
}

func withMeasures(t *testing.T, tweak ...func(*api.Config)) *measured {
	m := &measured{}
	m.harness = setup(t, append(tweak, func(c *api.Config) {
		c.Scaling = decisions(func(regionID, appID string) (*windlassv1.RegionScaling, error) {
			if err := m.err.Load(); err != nil {
				return nil, *err
			}
			if regionID != m.regions["us-east-1"] || !strings.HasPrefix(appID, "app_") {
				return nil, nil //nolint:nilnil // like the scaler for a region that does not report
			}
			return m.now.Load(), nil
		})
	})...)
	require.NoError(t, m.deployScaled(scalingPolicy(func(p *windlassv1.ScalingPolicy) {
		p.Metrics = append(p.Metrics,
			&windlassv1.ScalingMetric{Type: windlassv1.ScalingMetric_TYPE_FIRST_TOKEN, Target: "500ms"},
			&windlassv1.ScalingMetric{Type: windlassv1.ScalingMetric_TYPE_LATENCY, Target: "1s", Percentile: 50},
			&windlassv1.ScalingMetric{Type: windlassv1.ScalingMetric_TYPE_LATENCY, Target: "5s"},
		)
		p.Mode = windlassv1.ScalingPolicy_MODE_ADVISE
	})))
	m.settle("chat")
	return m
}

func (m *measured) value(metadata ...string) (float64, error) {
	ref := m.trigger(metadata...)
	res, err := m.keda().GetMetrics(m.t.Context(), &externalscaler.GetMetricsRequest{
		ScaledObjectRef: ref, MetricName: "windlass-" + strings.ToLower(ref.GetScalerMetadata()["metric"]),
	})
	if err != nil {
		return 0, err
	}
	require.Len(m.t, res.GetMetricValues(), 1)
	return res.GetMetricValues()[0].GetMetricValueFloat(), nil
}

func TestExternalScaler(t *testing.T) {
	m := withMeasures(t)
	ctx := t.Context()
	m.set(wantOf(inFlight, 12.25), wantOf(windlassv1.ScalingMetric_TYPE_FIRST_TOKEN, 0.25))

	spec, err := m.keda().GetMetricSpec(ctx, m.trigger())
	require.NoError(t, err)
	require.Equal(t, `metric_specs:{metric_name:"windlass-inflight" target_size:8 target_size_float:8}`, strings.ReplaceAll(spec.String(), "  ", " "))
	spec, err = m.keda().GetMetricSpec(ctx, m.trigger("target", "120.5"))
	require.NoError(t, err)
	require.Equal(t, []any{int64(121), 120.5}, []any{spec.GetMetricSpecs()[0].GetTargetSize(), spec.GetMetricSpecs()[0].GetTargetSizeFloat()})
	spec, err = m.keda().GetMetricSpec(ctx, m.trigger("metric", "firstToken"))
	require.NoError(t, err)
	require.InDelta(t, 0.5, spec.GetMetricSpecs()[0].GetTargetSizeFloat(), 1e-9)

	res, err := m.keda().GetMetrics(ctx, &externalscaler.GetMetricsRequest{ScaledObjectRef: m.trigger(), MetricName: "windlass-inflight"})
	require.NoError(t, err)
	v := res.GetMetricValues()[0]
	require.Equal(t, []any{"windlass-inflight", int64(13), 12.25}, []any{v.GetMetricName(), v.GetMetricValue(), v.GetMetricValueFloat()})
	got, err := m.value("metric", "firstToken", "app", "default/production/chat")
	require.NoError(t, err)
	require.InDelta(t, 0.25, got, 1e-9)

	for activation, want := range map[string]bool{"": true, "0": true, "12": true, "13": false} {
		active, err := m.keda().IsActive(ctx, m.trigger("activationTarget", activation))
		require.NoError(t, err)
		require.Equal(t, want, active.GetResult(), activation)
	}
	m.set(wantOf(inFlight, 0))
	got, err = m.value()
	require.NoError(t, err, "a measured load of 0 is an answer")
	require.Zero(t, got)
	active, err := m.keda().IsActive(ctx, m.trigger())
	require.NoError(t, err)
	require.False(t, active.GetResult())
}

func TestExternalScaler_ServesTheExample(t *testing.T) {
	m := withMeasures(t)
	example, err := os.ReadFile("../../../../deployments/examples/keda/scaledobject.yaml")
	require.NoError(t, err)
	ref := &externalscaler.ScaledObjectRef{ScalerMetadata: map[string]string{}}
	for _, line := range regexp.MustCompile(`(?m)^ {6}(\w+): "?([^"\n]+)"?$`).FindAllStringSubmatch(string(example), -1) {
		value := line[2]
		if strings.HasSuffix(line[1], "FromEnv") {
			require.Equal(t, "WINDLASS_KEY", value)
			value = m.viewer + "\n" // a Secret that was made from a file ends with a newline
		}
		ref.ScalerMetadata[line[1]] = value
	}
	require.Len(t, ref.GetScalerMetadata(), 7)
	spec, err := m.keda().GetMetricSpec(t.Context(), ref)
	require.NoError(t, err)
	require.EqualValues(t, 200, spec.GetMetricSpecs()[0].GetTargetSize())
}

func TestExternalScaler_UnknownValueIsAnError(t *testing.T) {
	m := withMeasures(t)
	fails := func(reason windlassv1.ErrorReason, field, text string, metadata ...string) {
		t.Helper()
		_, err := m.value(metadata...)
		refused(t, err, connect.CodeUnavailable, reason, field)
		require.ErrorContains(t, err, text)
		_, err = m.keda().IsActive(t.Context(), m.trigger(metadata...))
		refused(t, err, connect.CodeUnavailable, reason, field)
	}
	fails(unavailable, "metric", "inFlight of app chat in region us-east-1 is not known: the region has not reported it for 45s")
	m.set(wantOf(inFlight, 3))
	fails(unavailable, "metric", "not measured since", "metric", "firstToken")
	fails(unavailable, "metric", "eu-west-1 is not known", "region", "eu-west-1")
	missing := wantOf(inFlight, 0)
	missing.Value, missing.MissingSince, missing.Problem = nil, 1, "no gateway reports"
	m.set(missing)
	fails(unavailable, "metric", "it is missing: no gateway reports")
	m.err.Store(new(model.ErrAgentUnreachable))
	fails(windlassv1.ErrorReason_ERROR_REASON_REGION_UNREACHABLE, "region", "no agent of region us-east-1")
	m.err.Store(new(errors.New("secret of the database")))
	_, err := m.value()
	require.Equal(t, connect.CodeInternal, connect.CodeOf(err))
	require.NotContains(t, err.Error(), "secret")
}

func TestExternalScaler_ErrorNamesTheFaultOfATrigger(t *testing.T) {
	m := withMeasures(t)
	m.set(wantOf(inFlight, 3))
	m.deploy("plain")
	m.settle("plain")
	for name, c := range map[string]struct {
		metadata []string
		code     connect.Code
		field    string
		text     string
	}{
		"no app":                      {[]string{"app", ""}, connect.CodeInvalidArgument, "app", "has no app: set app, region and metric"},
		"no region":                   {[]string{"region", ""}, connect.CodeInvalidArgument, "region", "has no region"},
		"no metric":                   {[]string{"metric", ""}, connect.CodeInvalidArgument, "metric", "has no metric"},
		"a role":                      {[]string{"role", "decode"}, connect.CodeInvalidArgument, "role", "leave role out"},
		"an unknown app":              {[]string{"app", "chit"}, connect.CodeNotFound, "app", `app "chit" does not exist`},
		"an app without scaling":      {[]string{"app", "plain"}, connect.CodeInvalidArgument, "app", "mode: advise"},
		"a region without it":         {[]string{"region", "mars"}, connect.CodeInvalidArgument, "region", "does not run in region"},
		"a metric that scaling lacks": {[]string{"metric", "queue"}, connect.CodeInvalidArgument, "metric", "but firstToken, inFlight, latency"},
		"one of two metrics":          {[]string{"metric", "latency"}, connect.CodeInvalidArgument, "metric", "2 metrics of type latency"},
		"a target of 0":               {[]string{"target", "0"}, connect.CodeInvalidArgument, "target", "above 0"},
		"a bad activation":            {[]string{"activationTarget", "many"}, connect.CodeInvalidArgument, "activationTarget", "above 0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := m.keda().GetMetricSpec(t.Context(), m.trigger(c.metadata...))
			require.Equal(t, c.code, connect.CodeOf(err), "%v", err)
			require.Equal(t, c.field, rpc.DetailOf(err).GetField())
			require.ErrorContains(t, err, c.text)
		})
	}
	_, err := m.keda().GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: m.trigger(), MetricName: "windlass-queue"})
	require.ErrorContains(t, err, "the metric of the trigger is windlass-inflight")
	_, err = m.keda().GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{MetricName: "windlass-queue"})
	refused(t, err, connect.CodeUnauthenticated, unauthenticatedError, "")
}

func TestExternalScaler_RoleOfAPoolHasItsOwnMetrics(t *testing.T) {
	m := withMeasures(t)
	policy := rolesPolicy()
	_, err := m.apps(m.deployer).Deploy(t.Context(), &windlassv1.DeployRequest{App: "pool", Spec: echo(pooled(0, 0)), Scaling: policy})
	require.NoError(t, err)
	m.settle("pool")
	decode := []string{"app", "pool", "role", "decode", "metric", "cpu"}
	spec, err := m.keda().GetMetricSpec(t.Context(), m.trigger(decode...))
	require.NoError(t, err)
	require.Equal(t, "windlass-cpu-decode", spec.GetMetricSpecs()[0].GetMetricName())
	require.InDelta(t, 80, spec.GetMetricSpecs()[0].GetTargetSizeFloat(), 1e-9)
	value := func() (float64, error) {
		res, err := m.keda().GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: m.trigger(decode...), MetricName: "windlass-cpu-decode"})
		if err != nil {
			return 0, err
		}
		return res.GetMetricValues()[0].GetMetricValueFloat(), nil
	}
	cpu := wantOf(windlassv1.ScalingMetric_TYPE_CPU, 60)
	m.now.Store(&windlassv1.RegionScaling{Roles: []*windlassv1.RegionScaling{{Role: "prefill"}, {Role: "decode", Wants: []*windlassv1.MetricWant{cpu}}}})
	v, err := value()
	require.NoError(t, err)
	require.InDelta(t, 60, v, 1e-9)
	m.now.Store(&windlassv1.RegionScaling{Roles: []*windlassv1.RegionScaling{{Role: "prefill"}}})
	_, err = value()
	refused(t, err, connect.CodeUnavailable, unavailable, "metric")
	for _, role := range []string{"", "router"} {
		_, err := m.keda().GetMetricSpec(t.Context(), m.trigger("app", "pool", "role", role))
		refused(t, err, connect.CodeInvalidArgument, invalid, "role")
		require.ErrorContains(t, err, "prefill, decode")
	}
}

func TestExternalScaler_KeyIsInTheMessage(t *testing.T) {
	on := newStore(t)
	written, err := trail.New(store.Bind[trail.Tx](on), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(t, err)
	var views atomic.Int64
	m := &measured{}
	m.harness = setupOn(t, on, func(c *api.Config) {
		c.Trail, c.Store = written, countingViews{c.Store, &views}
		c.FailedLogins = admission.NewBuckets(admission.PerMinute(5))
		c.KeyCacheTTL = time.Nanosecond // each call looks up its key
		c.Scaling = decisions(func(string, string) (*windlassv1.RegionScaling, error) {
			return &windlassv1.RegionScaling{Wants: []*windlassv1.MetricWant{wantOf(inFlight, 3)}}, nil
		})
	})
	require.NoError(t, m.deployScaled(scalingPolicy()))
	m.settle("chat")
	_, err = m.value()
	require.NoError(t, err)
	_, err = m.value("apiKeyFromEnv", "")
	refused(t, err, connect.CodeUnauthenticated, unauthenticatedError, "")
	_, err = m.value("apiKeyFromEnv", m.operator)
	require.Equal(t, connect.CodePermissionDenied, connect.CodeOf(err))
	// The names of another workspace do not exist.
	_, err = m.value("apiKeyFromEnv", m.rival)
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
	_, err = m.value("apiKeyFromEnv", m.rival, "app", m.app("chat").GetId())
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))

	madeUp := "wl_" + strings.Repeat("x", 43)
	for range 5 {
		_, err = m.value("apiKeyFromEnv", madeUp)
		refused(t, err, connect.CodeUnauthenticated, unauthenticatedError, "")
	}
	before := views.Load()
	_, err = m.value("apiKeyFromEnv", madeUp)
	refused(t, err, connect.CodeResourceExhausted, rateLimited, "")
	require.Equal(t, before, views.Load(), "the database is not read")
	stream, err := m.keda().StreamIsActive(t.Context(), m.trigger("apiKeyFromEnv", madeUp))
	require.NoError(t, err)
	require.False(t, stream.Receive())
	require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(stream.Err()))
	require.NoError(t, stream.Close())
	_, err = m.value()
	require.NoError(t, err, "a key that was valid before is not refused")

	stopped, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, written.Run(stopped))
	var noted []model.Audit
	m.update(func(tx store.Tx) (err error) {
		noted, err = tx.ListAudit("", model.Page{Limit: 100})
		return err
	})
	seen := map[string]bool{}
	for _, a := range noted {
		if strings.HasPrefix(a.Procedure, "/externalscaler.") {
			outcome, _, _ := strings.Cut(a.After, ",")
			seen[a.Actor+outcome] = true
			require.NotContains(t, a.After+a.Source, "wl_")
		}
	}
	require.Equal(t, map[string]bool{
		`operator{"outcome":"permission_denied"`: true, `{"outcome":"unauthenticated"`: true, `{"outcome":"rate_limited"`: true,
	}, seen)
}

func TestExternalScaler_ReadsAreLimited(t *testing.T) {
	m := withMeasures(t, func(c *api.Config) { c.Reads = admission.NewBuckets(admission.PerMinute(60)) })
	m.set(wantOf(inFlight, 3))
	var err error
	for range 100 {
		if _, err = m.value(); err != nil {
			break
		}
	}
	refused(t, err, connect.CodeResourceExhausted, rateLimited, "")
}

func TestExternalScaler_Streams(t *testing.T) {
	t.Parallel()
	m := withMeasures(t, func(c *api.Config) { c.KeyWatchers, c.KeyCacheTTL = 2, 20*time.Millisecond })
	m.set(wantOf(inFlight, 3))
	ctx := t.Context()
	key, err := m.access(m.owner).CreateApiKey(ctx, &windlassv1.CreateApiKeyRequest{Name: "keda", Role: windlassv1.Role_ROLE_VIEWER})
	require.NoError(t, err)
	ref := m.trigger("apiKeyFromEnv", key.GetValue())
	active, err := m.keda().StreamIsActive(ctx, ref)
	require.NoError(t, err)
	require.True(t, active.Receive(), "%v", active.Err())
	require.True(t, active.Msg().GetResult())
	spec, err := m.keda().StreamMetricSpec(ctx, ref)
	require.NoError(t, err)
	require.True(t, spec.Receive(), "%v", spec.Err())
	require.Equal(t, "windlass-inflight", spec.Msg().GetMetricSpecs()[0].GetMetricName())
	third, err := m.keda().StreamIsActive(ctx, ref)
	require.NoError(t, err)
	require.False(t, third.Receive())
	require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(third.Err()), "%v", third.Err())
	require.NoError(t, third.Close())

	m.set(wantOf(inFlight, 0))
	require.True(t, active.Receive(), "%v", active.Err())
	require.False(t, active.Msg().GetResult())
	_, err = m.access(m.owner).RevokeApiKey(ctx, &windlassv1.RevokeApiKeyRequest{Key: "keda"})
	require.NoError(t, err)
	for _, end := range []interface {
		Receive() bool
		Err() error
		Close() error
	}{active, spec} {
		require.False(t, end.Receive())
		require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(end.Err()), "%v", end.Err())
		require.NoError(t, end.Close())
	}

	lost, err := m.keda().StreamIsActive(ctx, m.trigger())
	require.NoError(t, err)
	require.True(t, lost.Receive())
	m.set()
	require.False(t, lost.Receive(), "a value that is no longer known ends the stream")
	require.Equal(t, connect.CodeUnavailable, connect.CodeOf(lost.Err()), "%v", lost.Err())
	require.NoError(t, lost.Close())
}
