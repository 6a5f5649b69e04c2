package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// release is a chart that is installed under its own name.
type release struct{ chart, namespace, values string }

// releases are the releases of a region's cluster that also has the control plane, in the order of the guide.
var releases = []release{
	{"windlass-controlplane", "windlass", `
service: {type: NodePort}
backup: {enabled: true, schedule: "0 0 1 1 *", volume: {emptyDir: {}}}
`},
	{"windlass-agent", "windlass-system", `
gatewayAPI: {gateway: infra/public}
routes: {xds: true}
`},
	{"windlass-gateway", "windlass-system", `
service: {type: NodePort}
tls: {enabled: true, certificate: apps, http3: true}
drain: {delaySeconds: 0, timeoutSeconds: 5}
`},
}

// inKubelab are values for kubelab, whose pods are model servers.
const inKubelab = `
probes: {liveness: {httpGet: {path: /health}}, readiness: {httpGet: {path: /health}, periodSeconds: 1}}
nodeSelector: {kubelab.windlass.run/group: cpu}
`

// charts runs helm and kubectl on a cluster.
type charts struct {
	t             *testing.T
	helm, kubectl string
	// dir has the configuration of both, files with values, and charts of an earlier release.
	dir, kubeconfig string
}

func newCharts(t *testing.T, s *stack) *charts {
	t.Helper()
	k := &charts{t: t, dir: t.TempDir(), kubeconfig: filepath.Join(s.clusterDir(us), "kubeconfig")}
	for name, path := range map[string]*string{"helm": &k.helm, "kubectl": &k.kubectl} {
		out, err := exec.CommandContext(t.Context(), "../../.ci/tool", name).Output()
		require.NoError(t, err, name)
		*path = strings.TrimSpace(string(out))
	}
	return k
}

// run runs a program for 5 minutes at most, which is longer than helm waits.
func (k *charts) run(stdin, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(k.t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+k.kubeconfig, "HOME="+k.dir)
	cmd.Stdin = strings.NewReader(stdin)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s%s", filepath.Base(program), strings.Join(args, " "), err, out.String(), stderr.String())
	}
	return out.String(), err
}

func (k *charts) ok(program string, args ...string) string {
	k.t.Helper()
	out, err := k.run("", program, args...)
	require.NoError(k.t, err)
	return out
}

// apply installs or upgrades a release from a folder with charts, and waits until its pods are ready.
func (k *charts) apply(verb, folder string, r release, more ...string) {
	k.t.Helper()
	values := filepath.Join(k.dir, r.chart+".yaml")
	require.NoError(k.t, os.WriteFile(values, []byte(inKubelab+r.values), 0o600))
	k.ok(k.helm, append([]string{
		verb, r.chart, filepath.Join(folder, r.chart), "--namespace=" + r.namespace, "--values=" + values, "--wait", "--timeout=4m",
	}, more...)...)
}

// requireNoDrift compares what the releases rendered with what is in the cluster, as GitOps controllers do.
func (k *charts) requireNoDrift(when string) {
	k.t.Helper()
	var manifests strings.Builder
	for _, r := range releases {
		manifests.WriteString(k.ok(k.helm, "get", "manifest", r.chart, "--namespace="+r.namespace))
	}
	out, err := k.run(manifests.String(), k.kubectl, "diff", "--server-side", "--force-conflicts", "--field-manager=drift", "--filename=-")
	require.NoError(k.t, err, "%s: %s", when, out)
}

// earlier writes the charts of an earlier release: without some objects of today, and with another image.
func (k *charts) earlier(folder string) string {
	k.t.Helper()
	old := filepath.Join(k.dir, "earlier")
	for _, r := range releases {
		chart := filepath.Join(old, r.chart)
		require.NoError(k.t, os.CopyFS(chart, os.DirFS(filepath.Join(folder, r.chart))))
		about, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
		require.NoError(k.t, err)
		about = bytes.ReplaceAll(about, []byte("0.1.0"), []byte("0.0.9"))
		require.NoError(k.t, os.WriteFile(filepath.Join(chart, "Chart.yaml"), about, 0o600))
		for _, template := range []string{"networkpolicy.yaml", "poddisruptionbudget.yaml"} {
			require.NoError(k.t, os.Remove(filepath.Join(chart, "templates", template)))
		}
	}
	return old
}

// testCharts installs, upgrades, rolls back and removes the charts in a cluster in which Windlass runs apps.
// The charts' pods are model servers, because the tests of each program cover that the program accepts the
// charts' configuration.
func testCharts(t *testing.T, s *stack) {
	const folder = "../../deployments/charts"
	k := newCharts(t, s)
	for _, namespace := range []string{"windlass", "windlass-system"} {
		k.ok(k.kubectl, "create", "namespace", namespace)
		// The API server refuses pods that are not restricted.
		k.ok(k.kubectl, "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
	}
	k.ok(k.kubectl, "-n", "windlass", "create", "secret", "generic", "windlass-database", "--from-literal=dsn=user:password@tcp(db:3306)/windlass")

	old := k.earlier(folder)
	for _, r := range releases {
		k.apply("install", old, r)
	}
	k.requireNoDrift("after the installation")
	// The secret changes as if an agent had stored its credential.
	k.ok(k.kubectl, "-n", "windlass-system", "patch", "secret", "windlass-agent-credential", "--patch", `{"data":{"value":"Y3JlZGVudGlhbA=="}}`)
	for _, r := range releases {
		k.apply("upgrade", folder, r)
	}
	k.requireNoDrift("after the upgrade")
	// helm does not wait for pods that are ending.
	s.eventually(t, "6 pods, all of the new release", func(context.Context) error {
		images, err := k.run("", k.kubectl, "get", "pods", "-A", "-l", "app.kubernetes.io/name in (windlass-controlplane,windlass-agent,windlass-gateway)",
			"-o", `jsonpath={range .items[*]}{.spec.containers[0].image}{"\n"}{end}`)
		if err == nil && (strings.Count(images, "\n") != 6 || strings.Count(images, ":v0.1.0\n") != 6) {
			err = fmt.Errorf("there are %s", images)
		}
		return err
	})
	policies := k.ok(k.kubectl, "get", "networkpolicies,poddisruptionbudgets", "-A", "-l", "app.kubernetes.io/part-of=windlass", "-o", "name")
	require.Len(t, strings.Fields(policies), 7, policies)

	const app = "charted"
	made := s.deployReady(t, app, podSpec(label("v1"), replicas(1), regions(us)))
	must(t, s.owner.apps.Scale, &windlassv1.ScaleRequest{Mutation: mutation(), App: named(app), Replicas: 2})
	s.waitLive(t, app, 1)
	s.deployReady(t, app, podSpec(label("v2"), replicas(2), regions(us)))
	k.requireNoDrift("after an app was scaled and rolled out")
	s.requireDeleted(t, made.AppId, app)

	gateways := releases[2]
	k.apply("upgrade", folder, gateways, "--set=replicas=3,log.level=debug")
	waitReplicas := func(n int) {
		t.Helper()
		want := fmt.Sprintf("%d %d %d", n, n, n)
		s.eventually(t, want+" replicas of the gateways", func(context.Context) error {
			got, err := k.run("", k.kubectl, "-n", gateways.namespace, "get", "deployment", gateways.chart, "-o", "jsonpath={.spec.replicas} {.status.replicas} {.status.readyReplicas}")
			if err == nil && got != want {
				err = fmt.Errorf("there are %s", got)
			}
			return err
		})
	}
	waitReplicas(3)
	_, err := k.run("", k.helm, "upgrade", gateways.chart, filepath.Join(folder, gateways.chart), "--namespace="+gateways.namespace, "--set=replica=4")
	require.ErrorContains(t, err, "additional properties 'replica' not allowed")
	k.ok(k.helm, "rollback", gateways.chart, "2", "--namespace="+gateways.namespace, "--wait", "--timeout=4m")
	waitReplicas(2)
	for _, r := range releases {
		k.ok(k.helm, "rollback", r.chart, "1", "--namespace="+r.namespace, "--wait", "--timeout=4m")
	}
	k.requireNoDrift("after the rollback to the release before")
	require.Equal(t, "Y3JlZGVudGlhbA==", k.ok(k.kubectl, "-n", "windlass-system", "get", "secret", "windlass-agent-credential", "-o", "jsonpath={.data.value}"))

	for i := range releases {
		r := releases[len(releases)-1-i]
		k.ok(k.helm, "uninstall", r.chart, "--namespace="+r.namespace, "--wait", "--timeout=4m")
	}
	kinds := strings.Fields(k.ok(k.kubectl, "api-resources", "--verbs=list", "-o", "name"))
	// The cluster removes dependents of the charts' objects, such as pods, after helm has removed the
	// objects.
	s.eventually(t, "nothing of the charts is left", func(context.Context) error {
		left, err := k.run("", k.kubectl, "get", strings.Join(kinds, ","), "-A", "-o", "name",
			"-l", "app.kubernetes.io/instance in (windlass-controlplane,windlass-agent,windlass-gateway)")
		if err == nil && left != "" {
			err = fmt.Errorf("there are %s", left)
		}
		return err
	})
	own := k.ok(k.kubectl, "get", "secrets", "-n", "windlass", "-o", "name") + k.ok(k.kubectl, "get", "secrets", "-n", "windlass-system", "-o", "name")
	require.Equal(t, "secret/windlass-database\n", own, "only the operator's own secret is left")
	s.eventually(t, "the namespace of the routes is removed", func(context.Context) error {
		_, err := k.run("", k.kubectl, "get", "namespace", "windlass-routes")
		if err == nil {
			return errors.New("the namespace still exists")
		}
		if !strings.Contains(err.Error(), `namespaces "windlass-routes" not found`) {
			return err
		}
		return nil
	})
}
