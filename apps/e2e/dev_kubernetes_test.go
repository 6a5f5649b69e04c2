package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/localstack/kubelab"
)

// testDevOnKubernetes does what a new user does with `windlass dev --runtime kubernetes` and the files of the
// README.
func testDevOnKubernetes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), buildPatience)
	defer cancel()
	program, err := kubelab.Ensure(ctx, func(line string) { t.Log(line) })
	require.NoError(t, err)
	d := newDevStack(t)
	// The folder of the test's programs may be outside of a checkout.
	d.env = append(d.env, kubelab.EnvProgram+"="+program)

	up := d.up("--runtime", "kubernetes", "--regions", us+","+eu)
	require.Contains(t, up.stdout, "deploy -f")
	for _, region := range []string{us, eu} {
		require.Contains(t, up.stdout, "kubelab/"+region+"/kubeconfig kubectl get pods -A")
	}
	s, code := d.status()
	require.Zero(t, code, "%+v", s)
	require.Len(t, s.Processes, 9)

	require.Contains(t, d.ok("deploy", "-f", example(t, "echo-kubernetes.yaml")), "echo v1 is ready: 4 of 4")
	// A health check that no kubelet supports works, too.
	file, err := os.ReadFile(example(t, "echo-kubernetes.yaml"))
	require.NoError(t, err)
	byHead := filepath.Join(t.TempDir(), "by-head.yaml")
	require.Contains(t, string(file), "healthCheck: {")
	require.NoError(t, os.WriteFile(byHead, bytes.Replace(file, []byte("healthCheck: {"), []byte("healthCheck: {method: HEAD, expectedCodes: [200-204], "), 1), 0o600))
	require.Contains(t, d.ok("deploy", "-f", byHead), "echo v2 is ready: 4 of 4")
	first := d.pods("echo", 4)
	require.Regexp(t, `(?m)^h100 +NVIDIA-H100-80GB-HBM3 +nvidia.com/gpu +\S+ GiB +2 +16 +2 +14 `, d.ok("region", "show", us))
	d.ok("deploy", "-f", example(t, "echo-kubernetes-v2.yaml"))
	second := d.pods("echo", 4)
	require.NotSubset(t, first, second)

	// The model servers of two pods each are ready once they have met.
	require.Contains(t, d.ok("deploy", "-f", example(t, "tensor-parallel.yaml")), "tensor-parallel v1 is ready: 2 of 2")
	d.pods("tensor-parallel", 4)
	require.Contains(t, d.ok("list", "instances", "tensor-parallel"), "shard/0.0 of 2 hosts")
	require.Contains(t, d.ok("status", "tensor-parallel"), "2 of 2 replicas ready, each of 2 hosts")
	d.ok("delete", "tensor-parallel", "--yes")
	d.pods("tensor-parallel", 0)
	for file, says := range map[string][]string{
		"echo-kubernetes-image.yaml": {"failed: ImagePullError", "cannot pull registry.example/modelserver@sha256:"},
		"echo-kubernetes-crash.yaml": {"failed: CrashLoop", "exit code 1", "last output:", "engine core failed to start"},
		"echo-kubernetes-oom.yaml":   {"failed: OOMKilled", "over its memory limit of 2048 MiB"},
	} {
		d.fails(1, []string{"deploy", "-f", example(t, file)}, append(says, "v3 is still live")...)
	}
	for file, says := range map[string]string{
		"echo-kubernetes-unknown-pool.yaml": "region us-east-1 has no pool b300: it has ",
		"echo-kubernetes-too-large.yaml":    "an instance takes 9 of one host, of which none has more than ",
	} {
		d.fails(1, []string{"deploy", "-f", example(t, file)}, "there is no room to begin", says)
	}
	require.Equal(t, second, d.pods("echo", 4), "a bad version touched the good one")

	// After a stop nothing runs. After the next start, the clusters have the same objects.
	stopped := d.dev("stop")
	require.Zero(t, stopped.code, stopped.stderr)
	d.requireNothingRuns()
	d.up()
	require.Equal(t, second, d.pods("echo", 4))
	d.settled("echo")

	// A killed cluster is started again with all its pods.
	require.NoError(t, syscall.Kill(d.pidOf("kubelab/"+us), syscall.SIGKILL))
	d.eventually("the cluster is back", func() error {
		s, code := d.status()
		for _, p := range s.Processes {
			if p.Name == "kubelab/"+us && p.Restarts == 0 {
				return fmt.Errorf("%+v", p)
			}
		}
		if code != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	d.settled("echo")
	s, _ = d.status()
	require.NoError(t, syscall.Kill(s.PID, syscall.SIGKILL))
	d.eventually("dev is gone", func() error {
		if s, _ := d.status(); s.Running {
			return errors.New("it runs")
		}
		return nil
	})
	d.up()
	require.Equal(t, second, d.pods("echo", 4))
	d.settled("echo")

	d.ok("delete", "echo", "--yes")
	d.pods("echo", 0)
	stopped = d.dev("stop")
	require.Zero(t, stopped.code, stopped.stderr)
	d.requireNothingRuns()
}

// pods waits until the clusters have n pods of the app that are not being deleted, and returns their UIDs.
func (d *devStack) pods(app string, n int) []string {
	d.t.Helper()
	var got []string
	d.eventually(fmt.Sprintf("%d pods of %s", n, app), func() error {
		got = nil
		configs, err := filepath.Glob(filepath.Join(d.data(), "kubelab", "*", "kubeconfig"))
		if err != nil || len(configs) == 0 {
			return errors.Join(err, os.ErrNotExist)
		}
		for _, path := range configs {
			c, err := openCluster(path)
			if err != nil {
				return err
			}
			pods, err := c.list(d.t.Context(), "api/v1/pods", "app.kubernetes.io/name="+app)
			if err != nil {
				return err
			}
			for _, p := range pods {
				got = append(got, p.Metadata.UID)
				if p.Metadata.DeletionTimestamp != "" {
					return fmt.Errorf("%s is being deleted", p)
				}
			}
		}
		if len(got) != n {
			return fmt.Errorf("%d pods", len(got))
		}
		return nil
	})
	slices.Sort(got)
	return got
}

// settled waits until the app is ready, its four instances answer, and its host answers at the gateways of
// two regions.
func (d *devStack) settled(app string) {
	d.t.Helper()
	d.eventually(app+" serves", func() error {
		var s struct {
			App struct {
				Status string
				URLs   []string
			}
		}
		r := d.run("", "status", app, "-o", "json")
		if err := json.Unmarshal([]byte(r.stdout), &s); err != nil {
			return err
		}
		var instances []struct{ Address string }
		if err := json.Unmarshal([]byte(d.run("", "list", "instances", app, "-o", "json").stdout), &instances); err != nil {
			return err
		}
		if s.App.Status != "APP_STATUS_READY" || len(s.App.URLs) != 2 || len(instances) != 4 {
			return fmt.Errorf("it is %+v, with %+v", s, instances)
		}
		for _, i := range instances {
			if status, _, err := get(d.t.Context(), "http://"+i.Address+"/health"); err != nil || status != http.StatusOK {
				return errors.Join(fmt.Errorf("%s answers %d", i.Address, status), err)
			}
		}
		for _, u := range s.App.URLs {
			if err := d.answers(u + "/health"); err != nil {
				return err
			}
		}
		return nil
	})
}

// answers sends a request to a host below localhost. It connects to this machine itself, because not every
// resolver knows such hosts.
func (d *devStack) answers(address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	host := u.Host
	u.Host = net.JoinHostPort("127.0.0.1", u.Port())
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return err
	}
	req.Host = host
	client := plainHTTP
	if u.Scheme == "https" {
		if client, err = httpsClient(filepath.Join(d.data(), "tls", "ca.crt"), u.Hostname(), host); err != nil {
			return err
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		return errors.Join(fmt.Errorf("%s answers %d", address, resp.StatusCode), err)
	}
	return nil
}
