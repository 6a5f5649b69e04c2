package process_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/apps/agent/internal/runtime"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/runtimetest"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	return ln.Addr().(*net.TCPAddr).Port
}

func TestPort_FixedPassesToTheNextInstance(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	rt := h.open(t)
	a := assignment("dep_1", 2, self(t))
	a.Deployment.Spec.Ports = []*windlassv1.Port{{Name: "http", Port: int32(freePort(t))}}
	require.NoError(t, rt.Apply(t.Context(), a))
	clash := func(in runtime.Instance) bool {
		return in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_FAILED && in.Reason == runtime.ReasonPortInUse && in.Doomed
	}
	all := until(t, rt, "dep_1", func(all []runtime.Instance) bool {
		return len(all) == 2 && (allReady(1)(all[:1]) && clash(all[1]) || allReady(1)(all[1:]) && clash(all[0]))
	})
	require.Contains(t, all[0].Message+all[1].Message, "fixed port allows one instance per host")
	// Another deployment waits for the port, and gets it when the port is free.
	b := assignment("dep_2", 1, self(t))
	b.Deployment.Spec.Ports = a.Deployment.Spec.Ports
	require.NoError(t, rt.Apply(t.Context(), b))
	until(t, rt, "dep_2", func(all []runtime.Instance) bool { return len(all) == 1 && clash(all[0]) })
	require.NoError(t, rt.Remove(t.Context(), "dep_1"))
	in := until(t, rt, "dep_2", allReady(1))[0]
	require.False(t, in.Doomed)
}

func TestPort_OfAnotherProcessIsNamed(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	port := ln.Addr().(*net.TCPAddr).Port
	h := newHost(t)
	rt := h.open(t)
	a := assignment("dep_1", 1, self(t))
	a.Deployment.Spec.Ports = []*windlassv1.Port{{Name: "http", Port: int32(port)}}
	require.NoError(t, rt.Apply(t.Context(), a))
	in := until(t, rt, "dep_1", func(all []runtime.Instance) bool { return len(all) == 1 && all[0].Reason == runtime.ReasonPortInUse })[0]
	require.True(t, in.Doomed)
	require.Contains(t, in.Message, fmt.Sprintf("port %d is in use by pid %d", port, os.Getpid()))
}

func TestReadiness_IgnoresAnotherProcessOnThePort(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.cfg.RestartDelay = lookable
	rt := h.open(t)
	a := assignment("dep_1", 1, self(t))
	a.Deployment.Spec.Env[runtimetest.FaultEnv] = runtimetest.FaultPortBlind
	require.NoError(t, rt.Apply(t.Context(), a))
	in := until(t, rt, "dep_1", func(all []runtime.Instance) bool {
		return len(all) == 1 && all[0].Status == windlassv1.InstanceStatus_INSTANCE_STATUS_RUNNING
	})[0]
	ln, err := net.Listen("tcp", in.Address)
	require.NoError(t, err)
	srv := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ReadHeaderTimeout: time.Second}
	defer func() { _ = srv.Close() }()
	go func() { _ = srv.Serve(ln) }()
	until(t, rt, "dep_1", func(all []runtime.Instance) bool {
		require.False(t, allReady(1)(all), "%+v", all)
		return len(all) == 1 && all[0].Reason == runtime.ReasonPortInUse && strings.Contains(all[0].Message, fmt.Sprint("pid ", os.Getpid()))
	})
	until(t, rt, "dep_1", func(all []runtime.Instance) bool {
		return len(all) == 1 && all[0].Address != "" && all[0].Address != in.Address
	})
}

func TestCommand_NotExecutableIsABadCommand(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	rt := h.open(t)
	script := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o600))
	require.NoError(t, os.Chmod(script, 0o700))
	for id, command := range map[string]string{"dep_1": script, "dep_2": "no-such-program-anywhere", "dep_3": os.TempDir()} {
		require.NoError(t, rt.Apply(t.Context(), assignment(id, 1, command)))
		in := until(t, rt, id, func(all []runtime.Instance) bool { return len(all) == 1 && all[0].Reason == runtime.ReasonBadCommand })[0]
		require.Contains(t, in.Message, command)
		require.True(t, in.Doomed)
	}
}

func TestHealthCheck_InstanceThatStaysSickIsReplaced(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	rt := h.open(t)
	a := assignment("dep_1", 1, self(t))
	a.Deployment.Spec.HealthCheck.UnhealthyThreshold = 1
	a.Deployment.Spec.HealthCheck.HealthyThreshold = 1
	require.NoError(t, rt.Apply(t.Context(), a))
	first := until(t, rt, "dep_1", allReady(1))[0]
	until(t, rt, "dep_1", func(all []runtime.Instance) bool {
		if allReady(1)(all) && all[0].ID == first.ID {
			if res, err := http.Post("http://"+all[0].Address+"/sick", "", nil); err == nil {
				_ = res.Body.Close()
			}
		}
		return allReady(1)(all) && all[0].ID != first.ID
	})
}

func TestMetrics_CountStartsEndsAndChecks(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	reg := prometheus.NewPedanticRegistry()
	h.cfg.Registerer = reg
	rt := h.open(t)
	require.NoError(t, rt.Apply(t.Context(), assignment("dep_1", 2, self(t))))
	a := assignment("dep_2", 1, "/no/such/program")
	a.Deployment.Spec.TerminationGrace = durationpb.New(time.Second)
	require.NoError(t, rt.Apply(t.Context(), a))
	until(t, rt, "dep_1", allReady(2))
	until(t, rt, "dep_2", func(all []runtime.Instance) bool { return len(all) == 1 && all[0].Doomed })
	got := map[string]float64{}
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	require.EqualValues(t, 2, got["deployment_instances_by_status ready"])
	require.EqualValues(t, 2, got["deployment_instance_startup_time_seconds"])
	require.GreaterOrEqual(t, got["deployment_instance_starts_total"], 3.0)
	require.GreaterOrEqual(t, got["deployment_instance_ends_total BadCommand"], 1.0)
	require.GreaterOrEqual(t, got["deployment_health_checks_total pass"], 4.0)
}
