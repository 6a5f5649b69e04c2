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
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// loadsModels: servers of one app load the models of others. A model is scaled without a lost request, moves when its
// server is killed, and says why no server can hold it.
func (s *stack) loadsModels(t *testing.T) {
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
	infer := func(ctx context.Context) error {
		body := `{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["hello"]}]}`
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.gateways[us]+"/v2/models/fraud/infer", strings.NewReader(body))
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
		if err == nil && (resp.StatusCode != http.StatusOK || !strings.Contains(string(answer), "hello")) {
			err = fmt.Errorf("%s: %.200s", resp.Status, answer)
		}
		return err
	}
	s.eventually(t, "an answer of the model", infer)

	ctx, stop := context.WithCancel(t.Context())
	var users sync.WaitGroup
	failures := make(chan error, 100)
	for range 2 {
		users.Go(func() {
			for ctx.Err() == nil {
				if err := infer(context.WithoutCancel(ctx)); err != nil {
					select {
					case failures <- err:
					default:
					}
				}
				select {
				case <-time.After(5 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	for _, n := range []int32{3, 1} {
		must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named("fraud"), Replicas: n})
		s.eventually(t, fmt.Sprintf("%d replicas of the model", n), func(ctx context.Context) error {
			list, err := s.replicasOf(ctx, "fraud")
			if err == nil && len(list) != int(n) {
				err = fmt.Errorf("there are %v", list)
			}
			return err
		})
	}
	stop()
	users.Wait()
	require.Empty(t, failures, "scaling out and in")

	was, err := s.replicasOf(t.Context(), "fraud")
	require.NoError(t, err)
	for _, p := range s.runningOf("shared") {
		if p.instance() == was[0].RuntimeName {
			require.NoError(t, p.kill9())
		}
	}
	s.eventually(t, "the model is elsewhere", func(ctx context.Context) error {
		list, err := s.replicasOf(ctx, "fraud")
		if err == nil && (len(list) != 1 || list[0].RuntimeName == was[0].RuntimeName) {
			err = fmt.Errorf("there are %v", list)
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
	both := model()
	both.Image = "registry.test/echo:v1"
	_, err = s.owner.apps.Deploy(t.Context(), &windlassv1.DeployRequest{Mutation: mutation(), App: named("other"), Spec: both})
	require.ErrorContains(t, err, "image has no effect")
	for _, app := range []string{"big", "fraud", "shared"} {
		s.cli(t).ok("delete", app, "--yes")
	}
}

// replicasOf returns the ready instances of an app that is a model.
func (s *stack) replicasOf(ctx context.Context, app string) ([]*windlassv1.Instance, error) {
	resp, err := s.owner.deployments.ListInstances(ctx, &windlassv1.ListInstancesRequest{App: named(app)})
	if err != nil {
		return nil, err
	}
	var ready []*windlassv1.Instance
	for _, in := range resp.Instances {
		if in.Status == windlassv1.InstanceStatus_INSTANCE_STATUS_READY {
			ready = append(ready, in)
		}
	}
	return ready, nil
}
