package agent_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/agent/internal/runtime/kubernetes/kubetest"
	"github.com/windlass-run/windlass/pkg/localstack/kubelab"
	"github.com/windlass-run/windlass/pkg/localstack/proc"
	"github.com/windlass-run/windlass/pkg/service"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
)

// patience is the deadline of every wait. It is long because the machine may be busy.
const patience = 4 * time.Minute

// programEnv makes the test binary the agent's program.
const programEnv = "WINDLASS_TEST_AGENT_PROGRAM"

// programMain is the program's main.
func programMain() int {
	ctx, stop := service.SignalContext(context.Background())
	err := agent.Main(ctx, os.Args[1:])
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "agent:", err)
		return 1
	}
	return 0
}

// cluster is a kubelab with the objects of deployments/kubernetes, except the agents. The agents
// run as processes of this machine.
type cluster struct {
	t     *testing.T
	admin kubernetes.Interface
	agent *rest.Config
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	started, err := kubelab.Start(t.Context(), kubelab.Config{
		DataDir: dir, CIDR: "127.85.0.0/16", Groups: []string{"name=cpu,nodes=1"}, DieWithParent: true,
		Progress: func(line string) { t.Log(line) },
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, started.Stop(context.WithoutCancel(t.Context()))) })
	admin, err := clientcmd.BuildConfigFromFlags("", started.Kubeconfig)
	require.NoError(t, err)
	c := &cluster{t: t}
	c.admin, err = kubernetes.NewForConfig(admin)
	require.NoError(t, err)
	c.agent, err = kubetest.AgentClient(t.Context(), admin)
	require.NoError(t, err)
	return c
}

// reset replaces the shared Secret by an empty one, as in the manifest.
func (c *cluster) reset(t *testing.T) {
	t.Helper()
	objects, err := kubetest.Manifest("agent.yaml")
	require.NoError(t, err)
	secrets := c.admin.CoreV1().Secrets(kubetest.Namespace)
	for _, o := range objects {
		if s, ok := o.(*corev1.Secret); ok {
			err := secrets.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=" + s.Name})
			require.NoError(t, err)
			_, err = secrets.Create(t.Context(), s, metav1.CreateOptions{})
			require.NoError(t, err)
		}
	}
}

// shared returns the credential that the agents share, or nil if there is none.
func (c *cluster) shared(t *testing.T) []byte {
	t.Helper()
	s, err := c.admin.CoreV1().Secrets(kubetest.Namespace).Get(t.Context(), kubetest.CredentialSecret, metav1.GetOptions{})
	require.NoError(t, err)
	return s.Data["value"]
}

// nameKey returns the key with which the agents name Secrets.
func (c *cluster) nameKey(t *testing.T) []byte {
	t.Helper()
	s, err := c.admin.CoreV1().Secrets(kubetest.Namespace).Get(t.Context(), kubetest.CredentialSecret, metav1.GetOptions{})
	require.NoError(t, err)
	return s.Data["name-key"]
}

// withoutKey returns the shared credential without its private key.
func (c *cluster) withoutKey(t *testing.T) []byte {
	t.Helper()
	var all map[string]any
	require.NoError(t, json.Unmarshal(c.shared(t), &all))
	require.NotEmpty(t, all["key"])
	delete(all, "key")
	out, err := json.Marshal(all)
	require.NoError(t, err)
	return out
}

func readFile(t *testing.T, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	return string(data)
}

// gatewaySecret is the name of the Secret for gateways in agent.yaml.
const gatewaySecret = "windlass-gateway-access"

// access waits until the agents have written the files for gateways, and returns them.
func (c *cluster) access(t *testing.T) map[string][]byte {
	t.Helper()
	var s *corev1.Secret
	require.Eventually(t, func() bool {
		var err error
		s, err = c.admin.CoreV1().Secrets(kubetest.Namespace).Get(t.Context(), gatewaySecret, metav1.GetOptions{})
		require.NoError(t, err)
		return len(s.Data) > 0
	}, patience, 20*time.Millisecond)
	for _, name := range []string{"ca.crt", "ca.key", "tls.crt", "tls.key"} {
		require.NotEmpty(t, s.Data[name], name)
	}
	return s.Data
}

// holder returns the identity of the agent that holds the lease, or "" if no agent does.
func (c *cluster) holder(t *testing.T, lease string) string {
	t.Helper()
	l, err := c.admin.CoordinationV1().Leases(kubetest.Namespace).Get(t.Context(), lease, metav1.GetOptions{})
	require.NoError(t, err)
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// kubeconfig writes a kubeconfig with the agent's credential for the API server at that URL, and
// returns its path.
func (c *cluster) kubeconfig(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: agent, user: {token: %q}}]
contexts: [{name: lab, context: {cluster: lab, user: agent, namespace: %s}}]
current-context: lab
`, server, base64.StdEncoding.EncodeToString(c.agent.CAData), c.agent.BearerToken, kubetest.Namespace), 0o600))
	return path
}

// program is an agent of the cluster that runs as a process of its own.
type program struct {
	*proc.Process
	dir, log string
}

// start starts an agent that has the token and reaches the API server at that URL.
func (c *cluster) start(t *testing.T, p *plane, server, token string) *program {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	a := &program{dir: filepath.Join(dir, "data"), log: filepath.Join(dir, "log")}
	tokenFile := filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(tokenFile, []byte(token), 0o600))
	a.Process, err = proc.Start(proc.Spec{
		Name: "agent", Path: self, RecordFile: filepath.Join(dir, "record"), LogFile: a.log, DieWithParent: true,
		Env: append(os.Environ(), programEnv+"=1"),
		Args: []string{
			"--runtime=kubernetes", "--server=" + p.url, "--data-dir=" + a.dir, "--join-token-file=" + tokenFile,
			"--kubeconfig=" + c.kubeconfig(t, server), "--credential-secret=" + kubetest.CredentialSecret,
			"--gateway-listen=127.0.0.1:0", "--gateway-secret=" + gatewaySecret, "--metrics-listen=127.0.0.1:0", "--log-format=json",
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, a.Stop(context.WithoutCancel(t.Context()), time.Second))
		if t.Failed() {
			log, err := os.ReadFile(a.log)
			t.Logf("log of an agent: %s %v", log, err)
		}
	})
	return a
}

// terminate sends SIGTERM and waits for a clean end.
func (a *program) terminate(t *testing.T) {
	t.Helper()
	require.NoError(t, a.Signal(syscall.SIGTERM))
	select {
	case <-a.Done():
	case <-time.After(patience):
		require.Fail(t, "the agent does not end")
	}
	require.NoError(t, a.Wait())
}

// lines returns the agent's log lines with that message.
func (a *program) lines(t *testing.T, message string) []map[string]any {
	t.Helper()
	data, err := os.ReadFile(a.log)
	require.NoError(t, err)
	var out []map[string]any
	for text := range strings.Lines(string(data)) {
		var line map[string]any
		// The last line may be half written.
		if json.Unmarshal([]byte(text), &line) == nil && line["msg"] == message {
			out = append(out, line)
		}
	}
	return out
}

// attribute waits for a log line with that message, and returns an attribute of the newest one.
func (a *program) attribute(t *testing.T, message, key string) string {
	t.Helper()
	var value string
	require.Eventually(t, func() bool {
		for _, line := range a.lines(t, message) {
			value, _ = line[key].(string)
		}
		return value != ""
	}, patience, 20*time.Millisecond, "the agent never logged %q", message)
	return value
}

func (a *program) identity(t *testing.T) string {
	t.Helper()
	return a.attribute(t, "agent started", "identity")
}

// health returns the status code and the body of /readyz.
func (a *program) health(t *testing.T) (code int, report service.Report) {
	t.Helper()
	address := a.attribute(t, "serving metrics and health", "address")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/readyz", nil)
	require.NoError(t, err)
	resp, err := (&http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&report))
	return resp.StatusCode, report
}

// becomes waits until the agent is ready and has that role.
func (a *program) becomes(t *testing.T, role string) {
	t.Helper()
	var code int
	var report service.Report
	deadline := time.Now().Add(patience)
	for ; report.Role != role || code != http.StatusOK; time.Sleep(50 * time.Millisecond) {
		require.False(t, time.Now().After(deadline), "the agent never became %s: %d %+v", role, code, report)
		code, report = a.health(t)
	}
}

// The subtests run one after the other, because there is one cluster and one Secret for a
// credential.
func TestAgentsOfACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Kubernetes control plane")
	}
	c := startCluster(t)
	t.Run("share one credential and take turns", c.takeTurns)
	t.Run("report a used token, and do not delay an agent with a good one", c.usedToken)
}

func (c *cluster) takeTurns(t *testing.T) {
	c.reset(t)
	p := startPlane(t, "turns")
	token := p.newToken()
	cut := startProxy(t, strings.TrimPrefix(c.agent.Host, "https://"))

	first := c.start(t, p, "https://"+cut.address, token)
	first.becomes(t, "active")
	require.Equal(t, []string{token}, p.used())
	require.Equal(t, first.identity(t), c.holder(t, "windlass-agent-turns"))
	require.Empty(t, c.holder(t, "windlass-agent-join"), "released for the next agent")
	kept, err := os.ReadFile(filepath.Join(first.dir, "credential.json"))
	require.NoError(t, err)
	require.JSONEq(t, string(kept), string(c.withoutKey(t)))
	require.FileExists(t, filepath.Join(first.dir, "agent.key"))
	require.Contains(t, string(kept), p.lastCredential())
	nameKey := c.nameKey(t)
	require.Len(t, nameKey, 32)
	session, access := p.only(t), c.access(t)
	require.Contains(t, p.announced(), agentv1.Feature_FEATURE_GPU_POOL.String())

	// The second agent does not need the token, which was used already.
	second := c.start(t, p, c.agent.Host, token)
	second.becomes(t, "stand-by")
	require.Equal(t, []string{token}, p.used())
	kept, err = os.ReadFile(filepath.Join(second.dir, "credential.json"))
	require.NoError(t, err)
	require.JSONEq(t, string(c.withoutKey(t)), string(kept))
	require.Equal(t, readFile(t, first.dir, "agent.key"), readFile(t, second.dir, "agent.key"), "the credential is bound to the key")
	require.Equal(t, first.identity(t), c.holder(t, "windlass-agent-turns"))
	require.Equal(t, session, p.only(t), "only one agent works for the region")

	// An agent that cannot reach the API server must stop working before another agent begins.
	cut.off()
	second.becomes(t, "active")
	require.Equal(t, nameKey, c.nameKey(t))
	own, err := os.ReadFile(filepath.Join(second.dir, "name.key"))
	require.NoError(t, err)
	require.Equal(t, nameKey, own)
	require.Equal(t, second.identity(t), c.holder(t, "windlass-agent-turns"))
	first.becomes(t, "stand-by")
	require.NotEqual(t, session, p.only(t))
	cut.on()
	require.Eventually(t, func() bool { return len(second.lines(t, "serving routes to gateways")) == 2 }, patience, 20*time.Millisecond)
	require.Equal(t, access, c.access(t), "the next agent has the same CA")

	second.terminate(t)
	first.becomes(t, "active")
	require.Equal(t, first.identity(t), c.holder(t, "windlass-agent-turns"))
	require.Equal(t, []string{token}, p.used())
	p.only(t)
	first.terminate(t)
	require.Empty(t, c.holder(t, "windlass-agent-turns"), "released, although no other agent is left")
}

func (c *cluster) usedToken(t *testing.T) {
	c.reset(t)
	p := startPlane(t, "tokens")
	old := p.newToken()
	p.use(old)

	late := c.start(t, p, c.agent.Host, old)
	const complaint = "cannot get the region's credential; will try again"
	require.Eventually(t, func() bool { return len(late.lines(t, complaint)) >= 2 }, patience, 50*time.Millisecond)
	why := late.attribute(t, complaint, "error")
	require.Contains(t, why, "cannot join with the token in ")
	require.Contains(t, why, "the join token was used by another agent: make a new one with `windlass region token`")
	code, report := late.health(t)
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "starting", report.Role)
	require.Contains(t, report.Checks["credential"].Error, "`windlass region token`")
	require.Empty(t, c.shared(t))

	fresh := p.newToken()
	other := c.start(t, p, c.agent.Host, fresh)
	other.becomes(t, "active")
	require.Equal(t, []string{old, fresh}, p.used())
	late.becomes(t, "stand-by")
	other.terminate(t)
	late.becomes(t, "active")
	late.terminate(t)
}
