package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/windlass-run/windlass/pkg/flock"
	"github.com/windlass-run/windlass/pkg/localstack/atomicfile"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
)

const partPrometheus = "prometheus"

// prometheusProgram finds Prometheus in PATH, or downloads Debian's package and unpacks it into the cache. It
// does not install the package, because an installation would start a service and need root.
func prometheusProgram(ctx context.Context) (string, error) {
	if path, err := exec.LookPath("prometheus"); err == nil {
		return path, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "windlass", "prometheus")
	path := filepath.Join(dir, "usr", "bin", "prometheus")
	lock, err := flock.Acquire(ctx, filepath.Join(cache, "windlass", "prometheus.lock"), func() {})
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Unlock() }()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "prometheus-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // a later run can remove the rest
	download := func() error {
		cmd := exec.CommandContext(ctx, "apt-get", "-qq", "-o", "Acquire::Retries=3", "download", "prometheus")
		cmd.Dir = tmp
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("apt-get download prometheus: %w: %s", err, out)
		}
		return nil
	}
	if err := download(); err != nil {
		// The package lists may be missing or old. Only root can update them.
		out, updateErr := exec.CommandContext(ctx, "apt-get", "-qq", "update").CombinedOutput()
		if updateErr != nil {
			return "", fmt.Errorf("%w; apt-get update: %w: %s: put prometheus 2.42 or newer in PATH", err, updateErr, out)
		}
		if err := download(); err != nil {
			return "", err
		}
	}
	packages, err := filepath.Glob(filepath.Join(tmp, "prometheus_*.deb"))
	if err != nil || len(packages) != 1 {
		return "", fmt.Errorf("apt-get downloaded %q", packages)
	}
	unpacked := filepath.Join(tmp, "root")
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "--extract", packages[0], unpacked).CombinedOutput(); err != nil {
		return "", fmt.Errorf("dpkg-deb: %w: %s", err, out)
	}
	return path, errors.Join(os.RemoveAll(dir), os.Rename(unpacked, dir))
}

// addPrometheus adds a Prometheus that scrapes the targets of serveFigures twice a second.
func (s *stack) addPrometheus() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	path, err := prometheusProgram(ctx)
	require.NoError(s.t, err)
	dir := filepath.Join(s.dir, partPrometheus)
	port := freePort(s.t)
	s.prometheus = "http://" + address(port)
	require.NoError(s.t, os.MkdirAll(dir, 0o700))
	require.NoError(s.t, os.WriteFile(s.targetsFile(), []byte("[]"), 0o600))
	config := filepath.Join(dir, "prometheus.yml")
	job := map[string]any{
		"job_name":        "instances",
		"file_sd_configs": []any{map[string]any{"files": []string{s.targetsFile()}, "refresh_interval": "1s"}},
	}
	if s.cfg.runtime == "kubernetes" {
		job["relabel_configs"] = relabelling(s.t)
	}
	text, err := yaml.Marshal(map[string]any{
		"global": map[string]any{"scrape_interval": "500ms", "scrape_timeout": "500ms"}, "scrape_configs": []any{job},
	})
	require.NoError(s.t, err)
	require.NoError(s.t, os.WriteFile(config, text, 0o600))
	log := filepath.Join(dir, "log")
	s.add(partPrometheus, log, func(context.Context) (server, error) {
		p, err := proc.Start(proc.Spec{
			Name: partPrometheus, Path: path, Env: s.environ(), Dir: dir,
			Args: []string{
				"--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address(port),
				"--storage.tsdb.retention.time=1h", "--log.level=warn",
			},
			RecordFile: filepath.Join(dir, "process.json"), LogFile: log, DieWithParent: true,
		})
		if err != nil {
			return nil, err
		}
		return program{p, 25 * time.Second}, nil
	})
	s.parts[partPrometheus].up = s.prometheus + "/-/ready"
}

// relabelling returns the rules by which the Prometheus of users labels pods.
func relabelling(t *testing.T) any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(example(t, "echo.yaml")), "..", "kubernetes", "prometheus.yaml"))
	require.NoError(t, err)
	var given struct {
		Jobs []map[string]any `json:"scrape_configs"`
	}
	require.NoError(t, yaml.Unmarshal(text, &given))
	require.Len(t, given.Jobs, 1)
	require.NotEmpty(t, given.Jobs[0]["relabel_configs"])
	return given.Jobs[0]["relabel_configs"]
}

func (s *stack) targetsFile() string { return filepath.Join(s.dir, partPrometheus, "targets.json") }

// target is an entry of Prometheus' files of targets.
type target struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// processTargets returns the app's processes as targets, with the labels that the analysis queries.
func (s *stack) processTargets(_ context.Context, app string) (out []target, err error) {
	for _, p := range s.runningOf(app) {
		out = append(out, target{[]string{"127.0.0.1:" + p.env["PORT"]}, map[string]string{
			"windlass_deployment": p.deployment(), "windlass_region": p.region(),
		}})
	}
	return out, nil
}

// podTargets returns the app's pods as Prometheus' Kubernetes discovery would. Debian's Prometheus has no
// such discovery. So the labels are made from the pods' labels, by the rules in the guide.
func (s *stack) podTargets(ctx context.Context, app string) (out []target, err error) {
	for _, region := range s.cfg.regions {
		c, err := openCluster(filepath.Join(s.clusterDir(region), "kubeconfig"))
		if err != nil {
			return nil, err
		}
		pods, err := c.list(ctx, "api/v1/pods", "app.kubernetes.io/managed-by=windlass,app.kubernetes.io/name="+app)
		if err != nil {
			return nil, err
		}
		for _, p := range pods {
			if p.Status.PodIP == "" {
				continue
			}
			labels := map[string]string{"__meta_kubernetes_pod_phase": p.Status.Phase}
			for name, value := range p.Metadata.Labels {
				labels["__meta_kubernetes_pod_label_"+strings.NewReplacer(".", "_", "/", "_", "-", "_").Replace(name)] = value
			}
			at := net.JoinHostPort(p.Status.PodIP, strconv.Itoa(p.Spec.Containers[0].Ports[0].ContainerPort))
			out = append(out, target{[]string{at}, labels})
		}
	}
	return out, nil
}

// serveFigures tells Prometheus every running instance, and sends requests to each instance, until the test
// ends.
func (s *stack) serveFigures(t *testing.T, apps ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	find := s.processTargets
	if s.cfg.runtime == "kubernetes" {
		find = s.podTargets
	}
	go func() {
		defer close(done)
		var told string
		for ctx.Err() == nil {
			targets, err := []target{}, error(nil)
			for _, app := range apps {
				found, failed := find(ctx, app)
				if failed != nil && ctx.Err() == nil {
					err = failed
				}
				targets = append(targets, found...)
				for _, at := range found {
					// The instance may be loading or ending.
					_ = ask(ctx, "http://"+at.Targets[0])
				}
			}
			var text []byte
			if err == nil {
				text, err = json.Marshal(targets)
			}
			if err == nil && string(text) != told {
				told = string(text)
				err = atomicfile.Write(s.targetsFile(), text, 0o600)
			}
			if err != nil {
				done <- err
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
}

func ask(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	cmd := `{"model":"echo","messages":[{"role":"user","content":"hello"}]}`
	return post(ctx, url+"/v1/chat/completions", strings.NewReader(cmd))
}
