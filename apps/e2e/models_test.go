package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestModels tests models, which servers of another app load. Scaling a model loses no request. A model moves
// when its server is killed. Its status says why no server can hold it.
func TestModels(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{gateways: true, regions: []string{us}})
	repository := filepath.Join(s.dir, "models")
	for _, name := range []string{"fraud", "big"} {
		require.NoError(t, os.MkdirAll(filepath.Join(repository, name), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(repository, name, "model.json"), []byte(`{"memoryMib": 2}`), 0o600))
	}
	server := spec(replicas(3), regions(us))
	server.Args = append(server.Args, "--model-repository", repository, "--model-memory-mib", "16")
	server.Models = &windlassv1.ModelServer{Protocol: windlassv1.ModelServer_PROTOCOL_V2, Capabilities: []string{"echo"}, MemoryMib: 16}
	s.deployReady(t, "shared", server)

	model := func(change ...func(*windlassv1.LoadedModel)) *windlassv1.DeploymentSpec {
		sp := &windlassv1.DeploymentSpec{
			Model: &windlassv1.LoadedModel{Requires: []string{"echo"}, MemoryMib: 2}, Regions: []string{us}, Replicas: new(int32(1)),
			ProgressDeadline: seconds(150),
		}
		for _, c := range change {
			c(sp.Model)
		}
		return sp
	}
	s.deployReady(t, "fraud", model())
	host := s.host(t, "fraud", windlassv1.Route_KIND_STABLE, 0)
	inferBy := func(ctx context.Context, client *http.Client, url string) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		body := `{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["hello"]}]}`
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v2/models/fraud/infer", strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Host = host
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		answer, err := io.ReadAll(resp.Body)
		if err == nil && (resp.StatusCode != http.StatusOK || !strings.Contains(string(answer), "hello")) {
			err = fmt.Errorf("%s: %.200s", resp.Status, answer)
		}
		return err
	}
	infer := func(ctx context.Context) error { return inferBy(ctx, caller, s.gateways[us]) }
	s.eventually(t, "an answer of the model", infer)

	load := s.callersOf(inferBy)
	t.Cleanup(load.stop)
	var was []*windlassv1.Instance
	for _, n := range []int32{3, 1} {
		must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named("fraud"), Replicas: n})
		s.eventually(t, fmt.Sprintf("%d replicas of the model, and none that a server has yet to unload", n), func(ctx context.Context) (err error) {
			was, err = s.replicasOf(ctx, "fraud", int(n))
			return err
		})
	}
	load.stop()
	load.requireNoneFailed(t, "scaling out and in")

	killed := 0
	for _, p := range s.runningOf("shared") {
		if p.instance() == was[0].RuntimeName {
			require.NoError(t, p.kill9())
			killed++
		}
	}
	require.Equal(t, 1, killed, "servers with the model")
	s.eventually(t, "another server has the model", func(ctx context.Context) error {
		list, err := s.replicasOf(ctx, "fraud", 1)
		if err == nil && list[0].RuntimeName == was[0].RuntimeName {
			err = fmt.Errorf("the killed server is listed again: %v", list)
		}
		return errors.Join(err, infer(ctx))
	})

	s.deploy(t, "big", model(func(m *windlassv1.LoadedModel) { m.Requires = []string{"onnx"} }))
	s.eventually(t, "the reason why no server can hold a model", func(ctx context.Context) error {
		resp, err := s.owner.deployments.ListInstances(ctx, &windlassv1.ListInstancesRequest{App: named("big")})
		if err != nil {
			return err
		}
		for _, in := range resp.Instances {
			if in.Reason == "Unschedulable" && in.Message == "3 servers lack capability onnx" {
				return nil
			}
		}
		return fmt.Errorf("there are %v", resp.Instances)
	})
	// Two adapters share one slot: each is loaded when a request for it comes.
	base := spec(replicas(1), regions(us), args("--adapter-slots", "1"))
	base.Models = &windlassv1.ModelServer{Protocol: windlassv1.ModelServer_PROTOCOL_LORA, Slots: 1, Eviction: &windlassv1.ModelEviction{PerMinute: 60, Keep: seconds(0)}}
	s.deployReady(t, "base", base)
	adapters := []string{"first", "second"}
	for _, name := range adapters {
		s.deployReady(t, name, &windlassv1.DeploymentSpec{
			Model: &windlassv1.LoadedModel{Server: "base", Path: "org/" + name}, Regions: []string{us}, Replicas: new(int32(1)),
			ProgressDeadline: seconds(150), Routing: &windlassv1.RoutingPolicy{ColdStart: &windlassv1.ColdStart{Hold: seconds(60)}},
		})
	}
	for _, name := range []string{"first", "second", "first"} {
		host := s.host(t, name, windlassv1.Route_KIND_STABLE, 0)
		s.eventually(t, "an answer of adapter "+name, func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.gateways[us]+"/v1/completions", strings.NewReader(`{"prompt": "hello", "model": "`+name+`"}`))
			if err != nil {
				return err
			}
			req.Host = host
			resp, err := caller.Do(req)
			if err != nil {
				return err
			}
			defer func() { _ = resp.Body.Close() }()
			answer, err := io.ReadAll(resp.Body)
			if err == nil && resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("%s: %.200s", resp.Status, answer)
			}
			return err
		})
	}
	s.eventually(t, "the adapter without a slot is ready on request", func(ctx context.Context) error {
		list, err := s.replicasOf(ctx, "second", 1)
		if err == nil && list[0].Reason != "Unloaded" {
			err = fmt.Errorf("there is %v", list[0])
		}
		return err
	})

	both := model()
	both.Image = "registry.test/echo:v1"
	_, err := s.owner.apps.Deploy(t.Context(), &windlassv1.DeployRequest{Mutation: mutation(), App: named("other"), Spec: both})
	require.ErrorContains(t, err, "image has no effect")
	for _, app := range append(adapters, "base", "big", "fraud", "shared") {
		s.cli(t).ok("delete", app, "--yes")
	}
}

// replicasOf returns the instances of an app that is a model, which are the servers that have it. It returns an error
// unless there are n and all are ready: a server that is about to unload the model still counts.
func (s *stack) replicasOf(ctx context.Context, app string, n int) ([]*windlassv1.Instance, error) {
	resp, err := s.owner.deployments.ListInstances(ctx, &windlassv1.ListInstancesRequest{App: named(app)})
	if err != nil {
		return nil, err
	}
	if len(resp.Instances) != n {
		return nil, fmt.Errorf("there are %d: %v", len(resp.Instances), resp.Instances)
	}
	for _, in := range resp.Instances {
		if in.Status != windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
			return nil, fmt.Errorf("one is not ready: %v", in)
		}
	}
	return resp.Instances, nil
}
